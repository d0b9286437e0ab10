"""Federated methods, one file each; `METHODS` finds them by name."""

from fedhead.algorithm.method import METHODS

__all__ = ["METHODS"]
