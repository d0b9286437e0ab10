"""What phases must have in common to share static tensors, graphs and compiled steps."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedhead.core.log import warn_once
from fedhead.core.tree import Tree, Weights
from fedhead.executors.steps import PhaseRun
from fedhead.models.module_digest import settings_digest, value_digest

_OFTEN = 2  # changes in a row of which a method is told


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
    """Return the method's settings, a space, and what the work is besides.

    A graph keeps the numbers that it was captured with, and a method may change any of its attributes between rounds.
    """
    step = phase_run.step
    algorithm, loss = step.program.algorithm, step.phase.loss
    by = None if getattr(loss, "__self__", None) is algorithm else value_digest(loss)
    name = getattr(loss, "__qualname__", type(loss))
    work = (id(step.program.task), type(algorithm), name, by, step.phase.data, step.optimizer, step.names)
    return f"{settings_digest(algorithm)} {(*work, *shapes)!r}"


class ChangingMethods:
    """Warns of methods whose attributes change from round to round, so that graphs are captured again each time."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[dict[str, str], int]] = {}  # attributes, and how often they changed in a row

    def captured(self, phase_run: PhaseRun, key: str) -> None:
        """Take note that graphs are about to be captured for a phase.

        Args:
            phase_run: The phase.
            key: Its key.
        """
        algorithm, where = phase_run.step.program.algorithm, key.partition(" ")[2]
        now = {name: value_digest(value) for name, value in vars(algorithm).items()}
        before, times = self._found.get(where, (now, 0))
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        times = times + 1 if changed else 0
        self._found[where] = now, times
        if times >= _OFTEN:
            names = ", ".join(f"{type(algorithm).__name__}.{name}" for name in changed)
            warn_once(
                f"{names}: it changes from round to round, so that CUDA graphs are captured again in each, which takes "
                "time: let the server send it to the clients, as an entry of its state that `broadcast` names"
            )


def structure(value: Any, first: int = 0) -> tuple[Any, ...]:
    """Return the shapes from dimension `first` on, the dtypes and the names of tensors, trees and sequences of them."""
    if isinstance(value, Tensor):
        return tuple(value.shape[first:]), value.dtype
    if not isinstance(value, Tree):
        return tuple(structure(one, first) for one in value)
    buffers = tuple(name for name in value if name in value.buffers) if isinstance(value, Weights) else None
    return tuple(value), buffers, *(structure(one, first) for one in value.values())
