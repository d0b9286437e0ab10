"""Differential privacy: mechanisms, their noise and guarantees, and the registry `PROTECTIONS`."""

from fedhead.privacy.base import PROTECTIONS

__all__ = ["PROTECTIONS"]
