"""Rows of `targets.py`, and fedhead's own `bench` as several rows use it."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple


class Measured(NamedTuple):
    """One measurement.

    Args:
        name: What was measured.
        value: The number.
        unit: Its unit.
        target: What is to be reached; empty: it is only for comparison.
        precision: What was computed in.
    """

    name: str
    value: float
    unit: str
    target: str = ""
    precision: str = "bf16"


def bench_rates(
    workload: str, clients: int, executors: list[str], precisions: list[str], options: argparse.Namespace
) -> list[Any]:
    """Return what `fedhead bench` measures, without the eager loop's line."""
    from fedhead.bench.benchmark import bench

    steps, repeats = (2, 1) if options.tiny else (None, 3)
    return bench([workload], [clients], executors, precisions, options.device, steps, repeats)[1:]
