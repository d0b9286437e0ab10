"""PyTorch's data sets and loaders as inputs and labels, in the order of the data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from fedhead.core.system.errors import BadInput, require, user_code
from fedhead.core.tree.inputs import map_inputs

BATCH = 32  # samples that are collated at a time, where a loader does not say
PAIRS = 'the Dataset must yield (sample, label) pairs, or dictionaries with a "label" (label="…" for another name)'


def is_torch(source: Any) -> bool:
    """Return whether something is a data set or loader of PyTorch."""
    return isinstance(source, Dataset | DataLoader)


def samples(source: Any, label: str, inputs: Sequence[str] | None) -> tuple[Any, list[Any]]:
    """Return the samples of a data set or loader: a list of inputs, or one per name, and the labels.

    A loader's batches are made by its own collate function, but in the order of the data set: its shuffling, and
    `drop_last`, concern training and not the data.

    Args:
        source: A `Dataset` or `DataLoader`.
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
    """Yield single samples."""
    if not isinstance(source, DataLoader):
        yield from _items(source)
        return
    with user_code("the DataLoader"):
        if isinstance(source.dataset, IterableDataset):
            for batch in source:
                yield from [batch] if source.batch_size is None else _split(batch)
            return
        items = list(_items(source.dataset, _indices(source)))
        if source.batch_sampler is None:  # batch_size=None: no batches
            yield from map(source.collate_fn, items)
            return
        size = source.batch_size or BATCH
        for i in range(0, len(items), size):
            yield from _split(source.collate_fn(items[i : i + size]))


def _indices(loader: DataLoader[Any]) -> Sequence[int]:
    """Return which samples a loader takes, in order."""
    require(
        not isinstance(loader.sampler, WeightedRandomSampler) and (not getattr(loader.sampler, "replacement", False)),
        "the DataLoader draws samples with replacement: give the Dataset itself",
    )
    everything = range(len(loader.dataset))  # type: ignore[arg-type]  # one with a length
    if loader.batch_size is None and loader.batch_sampler is not None:  # the user's own batches
        return sorted({int(i) for batch in loader.batch_sampler for i in batch})
    if isinstance(loader.sampler, RandomSampler) and loader.sampler.num_samples == len(everything):
        return everything  # without asking it, which would draw random numbers
    return sorted(loader.sampler)


def _items(dataset: Any, indices: Sequence[int] | None = None) -> Iterable[Any]:
    if isinstance(dataset, IterableDataset):
        return iter(dataset)
    require(
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"),
        f"{type(dataset).__name__} is not a torch Dataset with a length: give one that can be indexed",
    )
    return (dataset[i] for i in (range(len(dataset)) if indices is None else indices))


def _split(batch: Any) -> Iterable[Any]:
    """Yield the samples of a batch (x, y) or of a dictionary, whose x may be a dictionary too."""
    if isinstance(batch, Mapping):
        for i in range(len(next(iter(batch.values())))):
            yield {name: values[i] for name, values in batch.items()}
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        x, y = batch
        yield from (
            (map_inputs(lambda t, i=i: t[i], dict(x) if isinstance(x, Mapping) else x), y[i]) for i in range(len(y))
        )
    else:
        raise BadInput(PAIRS)


def label_array(values: Sequence[Any]) -> Any:
    """Return labels as an array of numbers or words."""
    return np.asarray([value.item() if hasattr(value, "item") else value for value in values])
