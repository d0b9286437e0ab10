"""Conversion of PyTorch data sets to inputs and labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from fedhead.core.system.errors import BadInput, require

PAIRS = 'the Dataset must yield (sample, label) pairs, or dictionaries with a "label" (label="…" for another name)'


def samples(source: Any, label: str, inputs: Sequence[str] | None, name: str) -> tuple[Any, list[Any]]:
    """Return the samples of a data set: a list of inputs, or one per name, and the labels.

    Args:
        source: A `Dataset`.
        label: Name of the label, where samples are dictionaries.
        inputs: Names of the inputs, where samples are dictionaries; None: all others.
        name: Name of the data in error messages.

    Raises:
        BadInput: If it has no length, is empty, or yields other types.
    """
    rows = list(_rows(source, name))
    require(rows, "the Dataset is empty: give at least one sample")
    if not all(isinstance(row, Mapping) for row in rows):
        require(all(isinstance(row, tuple | list) and len(row) == 2 for row in rows), PAIRS)
        if not all(isinstance(x, Mapping) for x, _ in rows):
            return [x for x, _ in rows], [y for _, y in rows]
        rows = [{**x, label: y} for x, y in rows]
    names = inputs or [name for name in rows[0] if name != label]
    for i, row in enumerate(rows):
        if lacking := [name for name in (label, *names) if name not in row]:
            raise BadInput(f"sample {i} of the Dataset has no {lacking[0]!r}; it has {', '.join(map(str, row))}")
    return {name: [row[name] for row in rows] for name in names}, [row[label] for row in rows]


def _rows(source: Any, name: str) -> Iterable[Any]:
    """Iterate over the samples of a data set."""
    fix = "give its Dataset, as in loader.dataset"
    require(not isinstance(source, DataLoader), f"a DataLoader shuffles, drops and collates for training: {fix}")
    if isinstance(source, IterableDataset):
        return iter(source)
    if isinstance(source, str):
        raise BadInput(f"{name} is the text {source!r}: names and files are for fedhead.Federation.load({source!r})")
    require(
        hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, np.ndarray | Tensor),
        f"{name} is {type(source).__name__}: give a pair (x, y), a torch Dataset with a length, a Hugging Face "
        "Dataset, or a pandas DataFrame",
    )
    return (source[i] for i in range(len(source)))
