"""Profile of a piece of work: the time by kind of kernel or operator."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fedhead.bench import timing
from fedhead.bench.timing import wait_for

# The first kind with a word in a kernel's (or, on a CPU, an operator's) name; names of the libraries differ by version.
KINDS = {
    "convolutions": ("conv", "fprop", "dgrad", "wgrad", "xmma", "filter_gradient", "expand", "collect"),
    "matrix products": ("gemm", "nvjet", "cutlass", "mm", "dot", "linear", "product", "forward", "backward"),
    "copies": ("memcpy", "memset", "copy", "cat", "index", "gather", "scatter", "clone", "stack"),
    "reductions": ("triton_red", "triton_per", "reduce", "norm", "sum", "mean", "max"),
    "element-wise": ("triton_poi", "elementwise", "multi_tensor", "vectorized", "add", "mul", "sub", "div", "relu"),
}


@dataclass(frozen=True)
class Profile:
    """Time of a piece of work, by kind of kernel or operator.

    Args:
        seconds: By the clock.
        busy: In which the GPU computed; None on a CPU.
        kinds: Of kernels (on a CPU: of operators), by kind.
    """

    seconds: float
    busy: float | None
    kinds: dict[str, float]

    def lines(self) -> list[str]:
        """Return the profile as lines of text."""

        def share(name: str, seconds: float) -> str:
            return f"  {name:44} {1000 * seconds:9.1f} ms {seconds / self.seconds:6.1%}"

        found = [f"{'by the clock':46} {1000 * self.seconds:9.1f} ms"]
        if self.busy is not None:
            found += [share("GPU busy", self.busy), share("GPU idle", self.seconds - self.busy)]
        found += ["kernels by kind" if self.busy is not None else "operators by kind"]
        return found + [share(*pair) for pair in sorted(self.kinds.items(), key=lambda pair: -pair[1])]


def profiled(work: Callable[[], object], device: torch.device) -> Profile:
    """Do a piece of work and return where its time went.

    The work is done twice: once with torch's profiler, which slows the host down, for the kernels, and once without it
    for the clock.

    Args:
        work: The work, with whatever it compiles compiled already.
        device: Where it computes.
    """
    gpu = device.type == "cuda"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would print when it starts and stops
    activities = [ProfilerActivity.CUDA] if gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as trace:
        work()
        wait_for(device)
    kinds, busy = _kernels(trace) if gpu else (_operators(trace), None)
    return Profile(timing.seconds(work, device), busy, kinds)


def kind_of(name: str) -> str:
    """Return the kind of a kernel or an operator.

    >>> kind_of("triton_poi_fused_add_relu_3"), kind_of("void cutlass::Kernel2<...>"), kind_of("Memcpy DtoD")
    ('element-wise', 'matrix products', 'copies')
    """
    lower = name.lower()
    if lower.startswith("triton_"):  # fused kernels carry the names of all they compute: only the beginning counts
        lower = lower[:10]
    return next((kind for kind, words in KINDS.items() if any(word in lower for word in words)), "others")


def _kernels(trace: Any) -> tuple[dict[str, float], float]:
    """Return the seconds of kernels by kind, and those in which at least one of them ran."""
    kinds: Counter[str] = Counter()
    spans = []
    for event in trace.events():
        if event.device_type.name == "CUDA":
            kinds[kind_of(event.name)] += (event.time_range.end - event.time_range.start) * 1e-6
            spans.append((event.time_range.start, event.time_range.end))
    return dict(kinds), union(spans) * 1e-6


def union(spans: list[tuple[float, float]]) -> float:
    """Return the length of what intervals cover together.

    >>> union([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    covered, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


def _operators(trace: Any) -> dict[str, float]:
    kinds: Counter[str] = Counter()
    for entry in trace.key_averages():
        kinds[kind_of(entry.key)] += entry.self_cpu_time_total * 1e-6
    return dict(kinds)
