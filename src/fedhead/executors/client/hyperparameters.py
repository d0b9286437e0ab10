"""Hyperparameters in which runs that share a stack may differ: learning rate, weight decay, μ, τ, …

Runs that differ only in such fields do the same work, so that their clients can train in one stack. The hooks of a
method then see a copy of the method in which these fields are tensors with the values of the client's run. What decides
the structure of the work (whole numbers, words, epochs, whether there is momentum) must be alike.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.models.module_digest import settings_digest

T = TypeVar("T")
ROUND_LR = "lr"  # name of the round's learning rate among a run's hyperparameters
_ALGORITHM, _LOCAL = "algorithm", "local"
_OF_LR = ("lr_decay", "schedule", "warmup_rounds")  # reach a client only as the round's learning rate


def describe(algorithm: Algorithm, task: Task) -> tuple[str, dict[str, float]]:
    """Return what runs must have in common to share a stack, as a text, and the hyperparameters that may differ.

    Args:
        algorithm: The method or stage.
        task: Sizes and settings.

    Returns:
        The text, and the hyperparameters by name, such as `algorithm.mu` and `local.optimizer.lr`.
    """
    hyperparameters: dict[str, float] = {}
    parts: list[Any] = [_masked(algorithm, _ALGORITHM, hyperparameters)]
    phases = algorithm.phases(task)
    if any(getattr(phase.loss, "__self__", None) is not algorithm for phase in phases):
        parts.append(dict(hyperparameters))  # a loss that is no method of the algorithm keeps those it was made with
    parts += [repr(dataclasses.replace(phase, loss=_name(phase))) for phase in phases]
    return repr([*parts, _masked_local(task.local, hyperparameters)]), hyperparameters


def _name(phase: Phase) -> Any:
    return getattr(phase.loss, "__qualname__", repr(phase.loss))


def _masked(part: Any, path: str, hyperparameters: dict[str, float]) -> Any:
    """Describe a dataclass without its numeric fields, which are entered into `hyperparameters`."""
    fields = [field.name for field in dataclasses.fields(part) if field.init]
    if vars(part).keys() - set(fields):
        return settings_digest(part)  # it has computed something of its fields
    found: list[Any] = [type(part)]
    for name in fields:
        value = getattr(part, name)
        if type(value) is float:
            hyperparameters[f"{path}.{name}"] = value
            found.append((name, float))
        elif dataclasses.is_dataclass(value):
            found.append((name, _masked(value, f"{path}.{name}", hyperparameters)))
        else:
            found.append((name, repr(value)))
    return found


def _masked_local(local: LocalTraining, hyperparameters: dict[str, float]) -> Any:
    optimizer = local.optimizer
    found: list[Any] = [type(optimizer)]
    for field in dataclasses.fields(optimizer):
        value = getattr(optimizer, field.name)
        # without momentum the optimizer's state has no velocity
        if field.name in ("lr", "weight_decay") or (field.name == "momentum" and value):
            hyperparameters[f"{_LOCAL}.optimizer.{field.name}"] = value
        else:
            found.append((field.name, value))
    if local.clip_norm is not None:
        hyperparameters[f"{_LOCAL}.clip_norm"] = local.clip_norm
    apart = {*_OF_LR, "optimizer", *(["clip_norm"] if local.clip_norm is not None else [])}
    found += [(f.name, getattr(local, f.name)) for f in dataclasses.fields(local) if f.name not in apart]
    return found


def with_hyperparameters(
    algorithm: Algorithm, task: Task, hyperparameters: Mapping[str, Tensor]
) -> tuple[Algorithm, Task]:
    """Return copies of the algorithm and of the task in which these fields are tensors.

    Args:
        algorithm: The method or stage.
        task: Sizes and settings.
        hyperparameters: The tensors, by the names that `describe` gives.
    """
    local = task.local
    for name, value in hyperparameters.items():
        part, _, path = name.partition(".")
        if part == _ALGORITHM:
            algorithm = _set(algorithm, path, value)
        elif part == _LOCAL:
            local = _set(local, path, value)
    return algorithm, task if local is task.local else _set(task, "local", local)


def _set(part: T, path: str, value: Any) -> T:
    """Return a copy of a dataclass with another value at a path of fields; its range was checked as a number."""
    name, dot, rest = path.partition(".")
    changed = copy.copy(part)
    object.__setattr__(changed, name, _set(getattr(part, name), rest, value) if dot else value)
    return changed
