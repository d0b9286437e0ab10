"""Client samplers, one file each, registered in `SAMPLERS`."""

from fedhead.samplers.base import SAMPLERS

__all__ = ["SAMPLERS"]
