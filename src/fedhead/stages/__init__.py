"""Stages, what happens after the rounds, one file each; importing this package registers them all in `STAGES`."""

from __future__ import annotations

import importlib
import pkgutil

from fedhead.algorithm.base import STAGES

__all__ = ["STAGES"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
