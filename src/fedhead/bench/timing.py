"""Timing of work on a device, synchronized with a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

ENOUGH_S = 10.0  # no repetitions after this many seconds


def wait_for(device: torch.device) -> None:
    """Synchronize with a device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the duration of a function, without previously queued work of the device."""
    wait_for(device)
    begin = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - begin


def fastest(timed: Callable[[], float], repeats: int) -> float:
    """Return the shortest of several times; long measurements vary less and are repeated less."""
    times: list[float] = []
    while len(times) < repeats and sum(times) < ENOUGH_S:
        times.append(timed())
    return min(times)
