"""Targets other than classes: multilabel targets and numbers to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.system.errors import BadInput, require, require_known
from fedhead.core.training.objectives import OBJECTIVES, Objective
from fedhead.data.inputs.arrays import to_array, to_tensor
from fedhead.data.inputs.labels import Classes, check_range

NUMBERS = "numbers, [N] or [N, T]"


def objective_of(name: str | None) -> type[Objective]:
    """Return the objective with a name, or raise `BadInput`; None: multiclass."""
    if name is None:
        return OBJECTIVES["multiclass"]
    return OBJECTIVES[require_known("objective", str(name), OBJECTIVES)]


def read(y: Any, objective: str, name: str = "y") -> Tensor:
    """Convert targets to float32 [N, T], one column per label or number.

    Args:
        y: Labels as 0 and 1, [N, L] (multilabel), or numbers, [N] or [N, T] (regression).
        objective: "multilabel" or "regression".
        name: Name of the targets in error messages.

    Raises:
        BadInput: If a target is missing, not finite, or not a label; the message has its position.
    """
    array = to_array(y, name, "targets")
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)  # None becomes NaN, which is reported below
        except (TypeError, ValueError):
            kind = type(array.flat[0]).__name__
            raise BadInput(f"{name} holds {kind}: objective={objective} needs numbers") from None
    tensor = to_tensor(array.astype(np.uint8) if array.dtype == bool else array, name).double()
    axes, needs = ((2,), "0 or 1 for each label, [N, L]") if objective == "multilabel" else ((1, 2), NUMBERS)
    if tensor.ndim not in axes or 0 in tensor.shape[1:]:
        raise BadInput(f"{name} has shape {tuple(tensor.shape)}: objective={objective} needs {needs}")
    tensor = tensor.reshape(len(tensor), -1)
    if len(bad := (~tensor.float().isfinite()).nonzero()):
        value, place = _word(tensor[tuple(bad[0])]), _place(bad[0], tensor)
        raise BadInput(f"{name} holds {value} in {place}: leave samples without a target out")
    if objective == "multilabel" and len(odd := ((tensor != 0) & (tensor != 1)).nonzero()):
        raise BadInput(f"{name} holds {tensor[tuple(odd[0])]:g} in {_place(odd[0], tensor)}: labels are 0 or 1")
    return tensor.float().contiguous()


def strata(y: Tensor, objective: str) -> NDArray[np.int64]:
    """Return the class of each sample, for stratification; 0 for objectives without classes."""
    return y.numpy() if objective_of(objective).has_classes else np.zeros(len(y), np.int64)


def blank(count: int, classes: int, objective: str) -> Tensor:
    """Return zero targets for a number of samples."""
    if objective_of(objective).has_classes:
        return torch.zeros(count, dtype=torch.int64)
    return torch.zeros(count, classes)


def columns(ys: Sequence[Tensor], names: Sequence[Any] | None, count: int | None, parts: Sequence[str]) -> Classes:
    """Return the number of columns of the targets of all parts, and their names.

    Raises:
        BadInput: If the parts differ, or the names or the number don't match.
    """
    width = ys[0].shape[1]
    for y, name in zip(ys, parts, strict=True):
        number = y.shape[1]
        require(number == width, f"{name} y has {number} columns, {parts[0]} y has {width}: all need the same")
    require(count in (None, width), f"classes: {count} do not match the {width} columns of y")
    words = None if names is None else tuple(map(str, names))
    given = len(words or ())
    require(words is None or given == width, f"names: {given} names were given, y has {width} columns")
    return Classes(width, words)


def check_targets(y: Tensor, classes: int, objective: str, name: str) -> None:
    """Check that stored labels or targets match the number of classes, labels or numbers."""
    if objective_of(objective).has_classes:
        check_range(y, classes, name)
    else:
        require(y.shape[1:] == (classes,), f"{name}: y has shape {tuple(y.shape)}, it must be [N, {classes}]")


def _word(value: Tensor) -> str:
    return "NaN" if value.isnan() else "an infinite number" if value.isinf() else "a number beyond float32"


def _place(at: Tensor, y: Tensor) -> str:
    row, column = at.tolist()
    return f"sample {row}" if y.shape[1] == 1 else f"sample {row}, column {column}"
