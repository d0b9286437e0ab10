"""Robust aggregators, one file each; `AGGREGATORS` finds them by name."""

from fedhead.aggregators.base import AGGREGATORS

__all__ = ["AGGREGATORS"]
