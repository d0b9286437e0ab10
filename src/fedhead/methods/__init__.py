"""Federated methods, one file each; importing this package registers them all in `METHODS`."""

from __future__ import annotations

import importlib
import pkgutil

from fedhead.algorithm.base import METHODS

__all__ = ["METHODS"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
