"""Differential privacy (mechanisms, noise, guarantees, the registry `PROTECTIONS`) and secure sums."""

from fedhead.privacy.base import PROTECTIONS

__all__ = ["PROTECTIONS"]
