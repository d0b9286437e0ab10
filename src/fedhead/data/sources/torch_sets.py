"""PyTorch's data sets as inputs and labels, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fedhead.core.system.errors import BadInput, require

PAIRS = 'the Dataset must yield (sample, label) pairs, or dictionaries with a "label" (label="…" for another name)'


def is_torch(source: Any) -> bool:
    """Return whether something is a data set of PyTorch, or a loader, which `samples` refuses."""
    return isinstance(source, Dataset | DataLoader)


def samples(source: Any, label: str, inputs: Sequence[str] | None) -> tuple[Any, list[Any]]:
    """Return the samples of a data set: a list of inputs, or one per name, and the labels.

    Args:
        source: A `Dataset`.
        label: Name of the label, where samples are dictionaries.
        inputs: Names of the inputs, likewise; None for all others.

    Raises:
        BadInput: If it has no length, is empty, or yields something else.
    """
    rows = list(_rows(source))
    require(rows, "the Dataset is empty: give at least one sample")
    if all(isinstance(row, Mapping) for row in rows):
        return _named(rows, label, inputs)
    require(all(isinstance(row, tuple | list) and len(row) == 2 for row in rows), PAIRS)
    xs = [row[0] for row in rows]
    if all(isinstance(x, Mapping) for x in xs):
        return {name: [x[name] for x in xs] for name in _selected(xs, inputs or list(xs[0]))}, [row[1] for row in rows]
    return xs, [row[1] for row in rows]


def _named(rows: Sequence[Mapping[str, Any]], label: str, inputs: Sequence[str] | None) -> tuple[Any, list[Any]]:
    if label not in rows[0]:
        raise BadInput(f"the Dataset's samples have no {label!r}; they have {', '.join(map(str, rows[0]))}")
    names = _selected(rows, inputs or [name for name in rows[0] if name != label])
    return {name: [row[name] for row in rows] for name in names}, [row[label] for row in rows]


def _selected(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Sequence[str]:
    for i, row in enumerate(rows):
        if lacking := [name for name in names if name not in row]:
            raise BadInput(f"sample {i} of the Dataset has no {lacking[0]!r}; it has {', '.join(map(str, row))}")
    return names


def _rows(source: Any) -> Iterable[Any]:
    """Return the single samples of a data set."""
    require(
        not isinstance(source, DataLoader),
        "a DataLoader shuffles, drops and collates for training: give its Dataset, as in loader.dataset",
    )
    if isinstance(source, IterableDataset):
        return iter(source)
    require(
        hasattr(source, "__len__") and hasattr(source, "__getitem__"),
        f"{type(source).__name__} is not a torch Dataset with a length: give one that can be indexed",
    )
    return (source[i] for i in range(len(source)))


def label_array(values: Sequence[Any]) -> Any:
    """Return labels as an array of numbers or words."""
    return np.asarray([value.item() if hasattr(value, "item") else value for value in values])
