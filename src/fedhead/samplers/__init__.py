"""Samplers of clients, one file each; `SAMPLERS` finds them by name."""

from fedhead.samplers.base import SAMPLERS

__all__ = ["SAMPLERS"]
