"""The small federation on which every method is tried, under the names that the tests use."""

from __future__ import annotations

from fedhead.testing.small import CLASSES, SIZES
from fedhead.testing.small import small_federation as federation
from fedhead.testing.small import small_model as network

__all__ = ["CLASSES", "SIZES", "federation", "network"]
