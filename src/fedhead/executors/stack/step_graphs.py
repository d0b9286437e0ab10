"""CUDA graphs of a step on static tensors, their cache keys and their compile time."""

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
from fedhead.models.module_digest import value_digest


class CompileTimer(Protocol):
    """Object that counts the seconds of compiling and capturing."""

    compile_seconds: float


class StepGraphs:
    """Graphs of one step and of several steps; fewer replays mean less idle time between graphs."""

    def __init__(self, owner: CompileTimer, work: Callable[[int], None], steps_per_graph: int = 8):
        self.owner, self.work, self.steps_per_graph = owner, work, steps_per_graph
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by number of steps

    def replay(self, count: int) -> None:
        """Replay `count` steps; the capture time is added to the owner's `compile_seconds`."""
        for steps, times in ((self.steps_per_graph, count // self.steps_per_graph), (1, count % self.steps_per_graph)):
            if times and steps not in self.graphs:
                with compiling(self.owner):
                    self.graphs[steps] = capture(partial(self.work, steps))
            for _ in range(times):
                self.graphs[steps].replay()


@contextmanager
def compiling(owner: CompileTimer) -> Iterator[None]:
    """Add the time spent in this context to the owner's `compile_seconds`; work queued before does not count."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    yield
    torch.cuda.synchronize()
    owner.compile_seconds += time.perf_counter() - begin


def static_copy(tree: Any) -> Any:
    """Return a contiguous copy, for use by graphs."""
    return pytree.tree_map(lambda t: t.clone(memory_format=torch.contiguous_format), tree)


def copy_into(to: Any, source: Any) -> None:
    """Copy the tensors of one structure into another of the same structure."""
    copy_all(zip(pytree.tree_leaves(to), pytree.tree_leaves(source), strict=True))


def copy_each(to: Any, source: Any) -> None:
    """Do `copy_into` one tensor at a time, so that the compiler fuses each copy with its computation."""
    for old, value in zip(pytree.tree_leaves(to), pytree.tree_leaves(source), strict=True):
        old.copy_(value)


# -- keys of graphs -----------------------------------------------------------------------------------
def without_rows(phase_run: PhaseRun) -> PhaseRun:
    """Drop the clients' sample indices, which differ in length and are not used by steps."""
    inputs = phase_run.inputs
    return phase_run._replace(inputs=inputs._replace(indices=inputs.indices[..., :0], mask=inputs.mask[..., :0]))


def cache_key(phase_run: PhaseRun) -> str:
    """Return the cache key of static tensors and graphs."""
    batches = phase_run.batches
    tensors = structure((phase_run.carry, phase_run.w, phase_run.inputs, batches.key))
    return _key(phase_run, batches.indices.shape, tensors)


def slot_key(phase_run: PhaseRun) -> str:
    """Return the cache key of graph runners, which is independent of the number of clients."""
    inputs = phase_run.inputs
    clients = structure((phase_run.carry, phase_run.w, inputs.per_client_tensors()), first=1)
    return _key(phase_run, phase_run.batches.indices.shape[2:], clients, structure(inputs.shared_tensors()))


def _key(phase_run: PhaseRun, *shapes: Any) -> str:
    step = phase_run.step
    algorithm, loss = step.program.algorithm, step.phase.loss
    digest = None if getattr(loss, "__self__", None) is algorithm else value_digest(loss)
    name = getattr(loss, "__qualname__", type(loss))
    work = (id(step.program.task), type(algorithm), name, digest, step.phase.data, step.optimizer, step.names)
    return repr((value_digest(algorithm), *work, *shapes))  # captured graphs contain parameters as constants


def structure(value: Any, first: int = 0) -> tuple[Any, ...]:
    """Return shapes (from dimension `first` on), dtypes and names of tensors, trees and sequences of them."""
    if isinstance(value, Tensor):
        return tuple(value.shape[first:]), value.dtype
    if not isinstance(value, Tree):
        return tuple(structure(item, first) for item in value)
    buffers = tuple(name for name in value if name in value.buffers) if isinstance(value, Weights) else None
    return tuple(value), buffers, *(structure(item, first) for item in value.values())
