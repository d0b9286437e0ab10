"""CUDA graphs of a step on static tensors, and the seconds that it takes to prepare them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from fedhead.core.system.cuda_graphs import capture
from fedhead.core.tree.foreach import copy_all


class Preparer(Protocol):
    """An object that counts the seconds spent on preparation."""

    preparing: float


class StepGraphs:
    """Graphs of one step and of several steps: a GPU idles longer between two graphs than between two kernels."""

    def __init__(self, owner: Preparer, work: Callable[[int], None], steps_per_graph: int = 8):
        self.owner, self.work, self.steps_per_graph = owner, work, steps_per_graph
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by number of steps

    def replay(self, count: int) -> None:
        """Replay `count` steps; the time for capturing is added to the owner's `preparing`."""
        for steps, times in ((self.steps_per_graph, count // self.steps_per_graph), (1, count % self.steps_per_graph)):
            if times and steps not in self.graphs:
                with preparing(self.owner):
                    self.graphs[steps] = capture(partial(self.work, steps))
            for _ in range(times):
                self.graphs[steps].replay()


@contextmanager
def preparing(owner: Preparer) -> Iterator[None]:
    """Add the time spent in this context to the owner's preparation, without work that was queued before."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    yield
    torch.cuda.synchronize()
    owner.preparing += time.perf_counter() - begin


def static_copy(tree: Any) -> Any:
    """Return a copy with its own memory, for graphs to work on."""
    return pytree.tree_map(lambda t: t.clone(memory_format=torch.contiguous_format), tree)


def copy_into(to: Any, source: Any) -> None:
    """Overwrite the tensors of one structure with those of another of the same structure."""
    copy_all(zip(pytree.tree_leaves(to), pytree.tree_leaves(source), strict=True))


def copy_each(to: Any, source: Any) -> None:
    """Compute `copy_into` one tensor after another: the compiler fuses each copy with what computes the tensor."""
    for old, value in zip(pytree.tree_leaves(to), pytree.tree_leaves(source), strict=True):
        old.copy_(value)
