"""Targets that are no classes: labels of which a sample has any number, and numbers to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput, unknown
from fedhead.core.training.objectives import OBJECTIVES, Objective
from fedhead.data.inputs.arrays import refuse_mask, to_tensor
from fedhead.data.inputs.labels import Classes


def objective_of(name: str | None) -> type[Objective]:
    """Return the objective of a name, or raise `BadInput` if there is none; None is that of classes."""
    if name is None:
        return OBJECTIVES["multiclass"]
    if not isinstance(name, str) or name not in OBJECTIVES:
        raise unknown("objective", str(name), OBJECTIVES)
    return OBJECTIVES[name]


def read(y: Any, objective: str, what: str = "y") -> Tensor:
    """Convert targets to float32 [N, T], one column per label or number.

    Args:
        y: Labels as 0 and 1, [N, L] (multilabel), or numbers, [N] or [N, T] (regression).
        objective: "multilabel" or "regression".
        what: Name of the targets in error messages.

    Raises:
        BadInput: If a target is missing, not finite, or no label; it names the place.
    """
    refuse_mask(y, what)
    try:
        array = np.asarray(y) if not isinstance(y, Tensor) else y
    except ValueError as error:
        raise BadInput(f"{what} can't be read as one array: its targets differ in shape") from error
    if isinstance(array, np.ndarray) and array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)  # None becomes NaN, which is named below
        except (TypeError, ValueError):
            raise BadInput(
                f"{what} holds {type(array.flat[0]).__name__}: objective={objective} needs numbers"
            ) from None
    if array.dtype in (np.bool_, torch.bool):
        array = torch.as_tensor(array).to(torch.uint8)
    found = to_tensor(array, what).double()
    if objective == "multilabel" and (found.ndim != 2 or 0 in found.shape[1:]):
        raise BadInput(
            f"{what} has shape {tuple(found.shape)}: objective=multilabel needs 0 or 1 for each label, [N, L]"
        )
    if found.ndim not in (1, 2) or 0 in found.shape[1:]:
        raise BadInput(f"{what} has shape {tuple(found.shape)}: objective=regression needs numbers, [N] or [N, T]")
    found = found.reshape(len(found), -1)
    if len(bad := (~found.float().isfinite()).nonzero()):
        raise BadInput(
            f"{what} holds {_word(found[tuple(bad[0])])} in {_place(bad[0], found)}: leave samples without a target out"
        )
    if objective == "multilabel" and len(odd := ((found != 0) & (found != 1)).nonzero()):
        raise BadInput(f"{what} holds {found[tuple(odd[0])]:g} in {_place(odd[0], found)}: labels are 0 or 1")
    return found.float().contiguous()


def blank(count: int, classes: int, objective: str) -> Tensor:
    """Return targets of so many samples that are all 0."""
    if objective_of(objective).has_classes:
        return torch.zeros(count, dtype=torch.int64)
    return torch.zeros(count, classes)


def columns(ys: Sequence[Tensor], names: Sequence[Any] | None, count: int | None, what: Sequence[str]) -> Classes:
    """Return how many columns the targets of all parts have, with their names.

    Raises:
        BadInput: If the parts differ, or the names or the number do not fit.
    """
    width = ys[0].shape[1]
    for y, name in zip(ys, what, strict=True):
        if y.shape[1] != width:
            raise BadInput(f"{name} y has {y.shape[1]} columns, {what[0]} y has {width}: all need the same")
    if count is not None and count != width:
        raise BadInput(f"classes: {count} do not match the {width} columns of y")
    if names is not None and len(names) != width:
        raise BadInput(f"names: {len(names)} names were given, y has {width} columns")
    return Classes(width, None if names is None else tuple(map(str, names)))


def _word(value: Tensor) -> str:
    return "NaN" if value.isnan() else "an infinite number" if value.isinf() else "a number beyond float32"


def _place(at: Tensor, y: Tensor) -> str:
    row, column = at.tolist()
    return f"sample {row}" if y.shape[1] == 1 else f"sample {row}, column {column}"
