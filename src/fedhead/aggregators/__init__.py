"""Robust aggregators, one file each, registered in `AGGREGATORS`."""

from fedhead.aggregators.base import AGGREGATORS

__all__ = ["AGGREGATORS"]
