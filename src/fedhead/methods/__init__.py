"""Federated methods, one file each, and their registry `METHODS`."""

from fedhead.algorithm.method import METHODS

__all__ = ["METHODS"]
