"""Timing of work on a device, synchronized with a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

ENOUGH_S = 10.0  # seconds of measuring after which nothing is repeated


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Do a piece of work and return how long it takes, without what the device was told before."""
    wait_for(device)
    begin = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - begin


def fastest(timed: Callable[[], float], repeats: int) -> float:
    """Return the least of several times, of fewer where these are long: they vary less, and someone waits."""
    times: list[float] = []
    while len(times) < repeats and sum(times) < ENOUGH_S:
        times.append(timed())
    return min(times)
