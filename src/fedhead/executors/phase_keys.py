"""What phases must have in common to share static tensors, graphs and compiled steps."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree

from fedhead.executors.steps import PhaseRun


def without_rows(phase_run: PhaseRun) -> PhaseRun:
    """Drop the clients' lists of rows, which differ in length: a step only uses its batch."""
    inputs = phase_run.inputs
    return phase_run._replace(inputs=inputs._replace(rows=inputs.rows[..., :0], mask=inputs.mask[..., :0]))


def cache_key(phase_run: PhaseRun) -> str:
    """Return what two phase runs must have in common to share static tensors and graphs."""
    batches = phase_run.batches
    tensors = structure((phase_run.carry, phase_run.w, phase_run.inputs, batches.key))
    return repr((_work(phase_run), batches.rows.shape, tensors))


def slot_key(phase_run: PhaseRun) -> str:
    """Return what two phase runs of stacks must have in common to pass through the same slots."""
    vectorizer, inputs = phase_run.step.vectorizer, phase_run.inputs
    clients = structure((phase_run.carry, phase_run.w, vectorizer.per_client(inputs)), first=1)
    return repr((_work(phase_run), phase_run.batches.rows.shape[2:], clients, structure(vectorizer.shared(inputs))))


def _work(phase_run: PhaseRun) -> tuple[Any, ...]:
    program, phase = phase_run.step.program, phase_run.step.phase
    loss = getattr(phase.loss, "__qualname__", repr(phase.loss))
    who = (id(program.task), repr(program.algorithm), loss, phase.data)
    return (*who, phase_run.step.optimizer, phase_run.step.names)


def structure(tree: Any, first: int = 0) -> list[tuple[Any, ...]]:
    """Return the shapes from dimension `first` on, the dtypes and the structure of a tree of tensors."""
    leaves, shape = pytree.tree_flatten(tree)
    return [(tuple(t.shape[first:]), t.dtype) for t in leaves] + [(str(shape),)]
