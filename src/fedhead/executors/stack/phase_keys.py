"""What phases must have in common to share static tensors, graphs and compiled steps."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedhead.core.tree.tree import Tree, Weights
from fedhead.executors.client.steps import PhaseRun
from fedhead.models.module_digest import settings_digest, value_digest


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
    vectorizer, inputs = phase_run.step.vectorizer, phase_run.inputs
    clients = structure((phase_run.carry, phase_run.w, vectorizer.per_client(inputs)), first=1)
    return _key(phase_run, phase_run.batches.rows.shape[2:], clients, structure(vectorizer.shared(inputs)))


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
