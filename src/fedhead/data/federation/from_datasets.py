"""Federations from data sets of other libraries: one that is partitioned, or one per client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput
from fedhead.data.federation import preprocessing
from fedhead.data.federation.from_arrays import FromArrays, pair_or_share
from fedhead.data.inputs.conversion import Pair, concatenate, convert
from fedhead.data.inputs.named_inputs import LayoutLike
from fedhead.data.inputs.tokenize import Tokenizer
from fedhead.data.partitions.client_test_sets import ClientTest
from fedhead.data.partitions.partition import Natural
from fedhead.data.partitions.partition_registry import PartitionLike
from fedhead.data.partitions.partition_registry import parse as parse_partition
from fedhead.data.sources import sources
from fedhead.data.sources.sources import Part, Reader, Reading
from fedhead.data.transforms.named_transforms import AnyTransform


class FromDatasets(FromArrays):
    """The ways to create a `Federation` from data sets of PyTorch, Hugging Face and pandas."""

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        partition: PartitionLike | None = None,
        clients: int | None = None,
        test: Any = None,
        *,
        inputs: str | Sequence[str] | None = None,
        label: str = "label",
        encode: str | Tokenizer | None = None,
        categories: Mapping[str, Sequence[Any]] | None = None,
        layout: LayoutLike = None,
        **settings: Any,
    ) -> Self:
        """Create a federation from a data set of PyTorch, Hugging Face or pandas.

        Args:
            dataset: A torch `Dataset` or `DataLoader` of (sample, label) pairs or of dictionaries, a Hugging Face
                `Dataset`, a pandas `DataFrame`, or a `DatasetDict` (or dictionary) of such with the parts train and,
                if there is one, test.
            partition: A partition or its name, see `from_arrays`; "natural(column)" takes the clients that a column
                names. A test set with this column gives the clients their own test samples.
            clients: Number of clients; by default 10, or those of the column.
            test: Test set, see `from_arrays`, or a data set, or the name of a part of a `DatasetDict` or of a column
                that holds 1 for test samples.
            inputs: Column of the samples, or several, for models with several inputs. By default all columns of a
                data frame or dictionary but those of label and client, and the only one of a Hugging Face data set.
            label: Column of the labels.
            encode: How texts become inputs: a tokenizer, which is any function from a text to its token ids, or an
                encoder by name, such as "hashing(2048)". Texts of different lengths are filled up, with a mask.
            categories: Categories of columns of a data frame, where the data may lack some; see `TableColumns`.
            layout: Meaning of the inputs, see `from_arrays`.
            **settings: Further arguments of `from_arrays`.

        Returns:
            The federation.

        Raises:
            BadInput: If a column is not there, or the data can't be read or partitioned.
        """
        train, held = sources.split(dataset, "the data")
        mark = None
        if isinstance(test, str) and isinstance(dataset, Mapping):
            if test not in dataset:
                raise BadInput(f"test: the data has no part {test!r}; it has {', '.join(map(str, dataset))}")
            held = dataset[test]
        elif isinstance(test, str):
            mark = test
        elif test is not None:
            held = test
        rule = None if partition is None else parse_partition(partition)
        column = rule.column if isinstance(rule, Natural) and "groups" not in settings else None
        missing = preprocessing.allows_missing(settings.get("missing", "refuse"))
        reader = Reader(Reading(inputs, label, encode, categories, missing, column, mark), [train])
        part = _indexed(reader, train) if _is_plain(train) else reader.read(train, "the data")
        if mark is not None:
            held = _mask(mark, part)
        test_groups = None
        if held is not None and not isinstance(held, int | float | tuple | np.ndarray):
            found = _read_test(reader, held)
            held, test_groups = (found.x, found.y), found.groups
        return cls.from_arrays(
            part.x,
            part.y,
            rule,
            clients,
            held,
            layout=_merged(layout, part.layout),
            **{
                "names": part.names,
                **({} if part.groups is None else {"groups": part.groups, "group_names": part.group_names}),
                **({} if test_groups is None else {"test_groups": test_groups}),
                **settings,
            },
        )

    @classmethod
    def from_clients(
        cls,
        clients: Iterable[Any] | Mapping[str, Any],
        test: Pair | float | None = None,
        seed: int = 0,
        client_test: str | float | ClientTest | None = None,
        transform: AnyTransform | None = None,
        classes: int | None = None,
        names: Sequence[str] | None = None,
        public: Pair | None = None,
        title: str = "your data",
        *,
        inputs: str | Sequence[str] | None = None,
        label: str = "label",
        encode: str | Tokenizer | None = None,
        categories: Mapping[str, Sequence[Any]] | None = None,
        layout: LayoutLike = None,
        missing: Literal["refuse", "mean"] = "refuse",
        augment: str | None = None,
        normalize: str | None = None,
        resize: int | None = None,
        objective: str = "multiclass",
    ) -> Self:
        """Create a federation from data that is already split.

        Args:
            clients: The data of each client, by name or in a list: a pair (x, y), which may be empty, or a data set,
                see `from_dataset`. A client with its own test set has (x, y, x_test, y_test), or a dictionary of the
                data sets train and test, such as a `DatasetDict`; together they are the global test set.
            test: Global test set (x, y), or the share of each client's samples that is held out for it; this share
                is also the client's own test set.
            seed: Seed of the clients' test sets.
            client_test: Test set of each client, see `from_arrays`.
            transform: Maps stored samples to model inputs.
            classes: Number of classes, see `from_arrays`.
            names: Names of the classes.
            public: Samples (x, y) that all parties hold.
            title: Name of the data in records.
            inputs: Columns of data sets that are inputs, see `from_dataset`.
            label: Column of the labels.
            encode: Tokenizer or encoder of texts, see `from_dataset`.
            categories: Categories of columns of data frames; by default those of all clients together.
            layout: Meaning of x, see `from_arrays`.
            missing: What to do with NaN, see `from_arrays`.
            augment: Augmentation in place of the transform's.
            normalize: Normalization in place of the transform's.
            resize: Height and width that images are resized to, see `from_arrays`.
            objective: What y holds, see `from_arrays`.

        Returns:
            The federation.

        Raises:
            BadInput: If the clients' data is empty or inconsistent.
        """
        if not isinstance(clients, Iterable):
            raise BadInput(f"clients is {type(clients).__name__}: give a list or dictionary of the clients' data")
        client_names = tuple(clients) if isinstance(clients, Mapping) else None
        if client_names is not None and len(set(map(str, client_names))) < len(client_names):
            raise BadInput(f"clients: two have the same name, {', '.join(map(repr, client_names))}; give each its own")
        held = list(clients.values() if isinstance(clients, Mapping) else clients)
        known = [f"client {name}" for name in client_names or range(len(held))]
        split = {what: sources.split(source, what) for what, source in zip(known, held, strict=True)}
        reading = Reading(inputs, label, encode, categories, preprocessing.allows_missing(missing))
        reader = Reader(reading, [train for train, _ in split.values()])
        parts = {what: reader.read(train, what) for what, (train, _) in split.items()}
        tests = {what: reader.read(own, f"{what}, test") for what, (_, own) in split.items() if own is not None}
        if tests and (test is not None or client_test is not None):
            raise BadInput("test and client_test: these clients have their own test sets, leave both out")
        pair, share = pair_or_share(test)
        found = convert(
            {what: (part.x, part.y) for what, part in parts.items()},
            {f"{what}, test": (part.x, part.y) for what, part in tests.items() if len(part.y)} or pair,
            public,
            names or next((part.names for part in parts.values() if part.names is not None), None),
            classes,
            _merged(layout, next((part.layout for part in parts.values() if part.layout is not None), None)),
            reading.missing,
            objective,
        )
        made = cls._assembled(
            concatenate(found.parts),
            _consecutive([len(part.y) for part in parts.values()]),
            found.classes,
            test=found.test,
            public=found.public,
            title=title,
            transform=transform,
            client_names=client_names,
            objective=objective,
        )
        if tests:
            own = _consecutive([len(tests[what].y) if what in tests else 0 for what in parts])
            made = replace(made, client_test=own, client_test_from="test")
        if share is not None:
            made = made.hold_out(share, seed)
        return preprocessing.prepare(made.with_client_test(client_test, seed), missing, augment, normalize, resize)


def _consecutive(sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return the rows of each client where one follows the other."""
    return [np.arange(end - size, end, dtype=np.int64) for end, size in zip(np.cumsum(sizes), sizes, strict=True)]


def _is_plain(source: Any) -> bool:
    """Return whether something is none of the known kinds, and so can only be indexed like a torch `Dataset`."""
    return not (hasattr(source, "column_names") or hasattr(source, "columns"))


def _indexed(reader: Reader, source: Any) -> Part:
    return sources.torch_part(source, reader.reading)


def _read_test(reader: Reader, source: Any) -> Part:
    """Return a test set, with its clients where it has their column."""
    if _is_plain(source):
        return _indexed(reader, source)
    column = reader.reading.client
    known = source.columns if hasattr(source, "columns") else source.column_names
    if column is not None and column not in known:
        reader = reader.without_clients()
    return reader.read(source, "the test data")


def _mask(column: str, part: Part) -> NDArray[np.bool_]:
    if part.mark is None:
        raise BadInput(f"test: {column!r} names a column or a part, which a torch Dataset does not have")
    if not np.isin(part.mark, (0, 1)).all():
        raise BadInput(f"test: column {column!r} must hold 0 for training and 1 for test samples")
    return np.asarray(part.mark, bool)


def _merged(layout: LayoutLike, found: Any) -> LayoutLike:
    """Return the user's layout, completed by what the reader knows of encoded columns."""
    if isinstance(layout, Mapping) and isinstance(found, Mapping):
        return {**found, **layout}
    return layout if layout is not None else found or None
