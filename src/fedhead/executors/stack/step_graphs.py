"""CUDA graphs of a step on static tensors, and the seconds that it takes to prepare them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedhead.core.system.cuda_graphs import capture
from fedhead.core.tree.foreach import copy_all
from fedhead.core.tree.tree import Tree, Weights
from fedhead.executors.client.client_round import PhaseRun
from fedhead.models.module_digest import settings_digest, value_digest


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


# -- keys of graphs -----------------------------------------------------------------------------------
def without_rows(phase_run: PhaseRun) -> PhaseRun:
    """Drop the clients' lists of rows, which differ in length: a step only uses its batch."""
    inputs = phase_run.inputs
    return phase_run._replace(inputs=inputs._replace(rows=inputs.rows[..., :0], mask=inputs.mask[..., :0]))


def cache_key(phase_run: PhaseRun) -> str:
    """Return what two phase runs must have in common to share static tensors and graphs."""
    batches = phase_run.batches
    tensors = structure((phase_run.carry, phase_run.w, phase_run.inputs, batches.key))
    return _key(phase_run, batches.rows.shape, tensors)


def slot_key(phase_run: PhaseRun) -> str:
    """Return what two phase runs of stacks must have in common to pass through the same slots."""
    inputs = phase_run.inputs
    clients = structure((phase_run.carry, phase_run.w, inputs.per_client_tensors()), first=1)
    return _key(phase_run, phase_run.batches.rows.shape[2:], clients, structure(inputs.shared_tensors()))


def _key(phase_run: PhaseRun, *shapes: Any) -> str:
    step = phase_run.step
    algorithm, loss = step.program.algorithm, step.phase.loss
    by = None if getattr(loss, "__self__", None) is algorithm else value_digest(loss)
    name = getattr(loss, "__qualname__", type(loss))
    work = (id(step.program.task), type(algorithm), name, by, step.phase.data, step.optimizer, step.names)
    return repr((settings_digest(algorithm), *work, *shapes))  # a graph keeps the numbers it was captured with


def structure(value: Any, first: int = 0) -> tuple[Any, ...]:
    """Return the shapes from dimension `first` on, the dtypes and the names of tensors, trees and sequences of them."""
    if isinstance(value, Tensor):
        return tuple(value.shape[first:]), value.dtype
    if not isinstance(value, Tree):
        return tuple(structure(one, first) for one in value)
    buffers = tuple(name for name in value if name in value.buffers) if isinstance(value, Weights) else None
    return tuple(value), buffers, *(structure(one, first) for one in value.values())
