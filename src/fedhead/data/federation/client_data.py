"""What a federation holds: samples, the clients that own them, and the transform to model inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.components.parameters import check
from fedhead.core.system import html
from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.core.tree.inputs import describe, map_inputs, model_types, shape_of, type_of
from fedhead.data.inputs import arrays, targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.missing_values import MissingValues
from fedhead.data.partitions import partition_file
from fedhead.data.partitions.allocation import Rows, stratified
from fedhead.data.partitions.client_test_sets import SHARE, ClientTest, Fraction, parse
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import AnyTransform, check_kind

_NOUNS = {"multiclass": "classes", "binary": "classes", "multilabel": "labels", "regression": "targets"}


@dataclass(frozen=True, eq=False, repr=False)
class ClientData:
    """Clients and their data; the clients' samples are rows of one training set.

    Args:
        train: Training samples of all clients.
        rows: Training samples of each client, as rows of `train`.
        classes: Number of classes, of labels (multilabel) or of numbers to predict (regression).
        test: Global test set.
        client_test: Test samples of each client, as rows of `train` or `test`.
        client_test_from: Which of the two they are rows of.
        validation: Validation samples of each client, as rows of `train` that are not among `rows`.
        transform: Maps stored samples to model inputs.
        public: Samples that all parties hold (KT-pFL).
        names: Names of the classes.
        client_names: Names of the clients.
        title: Name of the data in records.
        partition: Name of the partition in records.
        objective: What the labels are: "multiclass", "binary", "multilabel" or "regression".
        missing: How missing values of each table were filled, by name of the input ("" if there is one).

    Raises:
        BadInput: If the parts do not fit together.
    """

    train: Samples
    rows: list[Rows]
    classes: int
    test: Samples | None = None
    client_test: list[Rows] | None = None
    client_test_from: Literal["train", "test"] = "train"
    validation: list[Rows] | None = None
    transform: AnyTransform = field(default_factory=Transform)
    public: Samples | None = None
    names: Sequence[str] | None = None
    client_names: Sequence[str] | None = None
    title: str = "your data"
    partition: str = "natural"
    objective: str = "multiclass"
    missing: Mapping[str, MissingValues] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Say how much there is, not what."""
        samples = sum(len(rows) for rows in self.rows)
        test = 0 if self.test is None else len(self.test.y)
        shape = shape_of(self.train.x)
        return (
            f"{type(self).__name__}({self.title}, {self.partition}: {len(self.rows)} clients with {samples:,} samples "
            f"of shape {shape}, {self.classes} {_NOUNS[self.objective]}, {test:,} test samples)"
        )

    def _repr_html_(self) -> str:
        """Show each client's samples by class, in notebooks."""
        classes = [str(c) for c in range(self.classes)] if self.names is None else list(self.names)
        names = range(len(self.rows)) if self.client_names is None else self.client_names
        if not self.has_classes:
            return html.table(
                repr(self), ["client", "samples"], [list(each) for each in zip(names, self.sizes, strict=True)]
            )
        body = [[name, int(own.sum()), *own[: html.MOST]] for name, own in zip(names, self.counts(), strict=True)]
        return html.table(repr(self), ["client", "samples", *classes[: html.MOST]], body)

    def __post_init__(self) -> None:
        targets.objective_of(self.objective)
        if not self.rows:
            raise BadInput("a federation needs at least one client")
        for what, given, count in (
            ("names", self.names, self.classes),
            ("client_names", self.client_names, len(self.rows)),
        ):
            if given is not None:
                object.__setattr__(self, what, tuple(str(name) for name in given))
                if len(given) != count:
                    raise BadInput(f"{what}: {len(given)} names were given, {count} are needed")
        for what, data in (("training data", self.train), ("test data", self.test)):
            if data is not None and len(data.y) and self.has_classes:
                arrays.check_classes(data, self.classes, what)
            elif data is not None and len(data.y) and data.y.shape[1:] != (self.classes,):
                raise BadInput(f"{what}: y has shape {tuple(data.y.shape)}, it must be [N, {self.classes}]")
        if self.test is not None and _sample_type(self.test) != _sample_type(self.train):
            raise BadInput(
                f"test samples of shape {describe(self.test.x)} do not match training samples of "
                f"{describe(self.train.x)}"
            )
        if self.public is not None and _sample_type(self.public) != _sample_type(self.train):
            raise BadInput(
                f"public samples of shape {describe(self.public.x)} do not match the clients', "
                f"{describe(self.train.x)}: their models can't take both"
            )
        check_kind(self.transform, shape_of(self.train.x))

    # -- properties -------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.rows)

    @property
    def input_shape(self) -> Any:
        """Shape of one input of a model: a tuple, or a tuple by name."""
        return self.transform.output_shape(shape_of(self.train.x))

    @property
    def input_types(self) -> Any:
        """Type of a model's inputs, by name where they have names."""
        return model_types(self.train.x)

    @property
    def largest_token(self) -> Any:
        """Largest token of all samples, by name where inputs have names; None for what is not tokens."""
        parts = [data.x for data in (self.train, self.test, self.public) if data is not None and len(data.y)]

        def largest(*each: Tensor) -> int | bool | None:
            if each[0].dtype == torch.bool:
                return True
            return max(int(t.max()) for t in each) if each[0].dtype == torch.int64 else None

        return map_inputs(largest, *parts)

    @property
    def has_classes(self) -> bool:
        """Whether each sample is of one class."""
        return targets.objective_of(self.objective).has_classes

    @property
    def outputs(self) -> int:
        """Number of outputs that a model needs."""
        return targets.objective_of(self.objective).outputs(self.classes)

    @property
    def strata(self) -> NDArray[np.int64]:
        """Class of each training sample, by which shares are stratified; 0 where there are no classes."""
        return self.train.y.numpy() if self.has_classes else np.zeros(len(self.train.y), np.int64)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of training samples per client."""
        return tuple(len(rows) for rows in self.rows)

    def counts(self) -> NDArray[np.int64]:
        """Count training samples by client and class, [clients, classes]; [clients, 1] where there are no classes."""
        if not self.has_classes:
            return np.array(self.sizes, np.int64)[:, None]
        y = self.train.y.numpy()
        return np.stack([np.bincount(y[rows], minlength=self.classes) for rows in self.rows]).astype(np.int64)

    # -- modified copies --------------------------------------------------------------------------
    def with_client_test(self, client_test: str | float | ClientTest | None, seed: int = 0) -> Self:
        """Return the federation with a test set for each client; see `Federation.from_arrays`.

        Args:
            client_test: A share of the client's samples, or `matched`.
            seed: Seed of the choice.

        Returns:
            A copy, or the federation itself without `client_test`.
        """
        rule = parse(client_test)
        if rule is None:
            return self
        y = self.strata
        if isinstance(rule, Fraction):
            parts = [rule.split(rows, y, seed, k) for k, rows in enumerate(self.rows)]
            return replace(
                self, rows=[a for a, _ in parts], client_test=[b for _, b in parts], client_test_from="train"
            )
        if self.test is None:
            raise BadInput("client_test: matched draws from the global test set, but there is none; give test=(x, y)")
        if not self.has_classes:
            raise BadInput("client_test: matched needs classes; give a share of each client's samples, such as 0.3")
        held, counts = self.test.y.numpy(), self.counts()
        local = [rule.draw(own, int(counts.sum()), held, seed, k) for k, own in enumerate(counts)]
        return replace(self, client_test=local, client_test_from="test")

    def with_validation(self, share: float | None, seed: int = 0) -> Self:
        """Return the federation with a share of each client's training samples taken apart for validation.

        Args:
            share: Share of each client's training samples; None: none.
            seed: Seed of the choice, which is made by key for each client.

        Returns:
            A copy, or the federation itself where there is nothing to do.

        Raises:
            BadInput: If the share leaves no client a validation sample.
        """
        if share is None or self.validation is not None:
            return self
        check("validation", share, SHARE)
        parts = []
        for k, own in enumerate(self.rows):
            order = random.permutation(random.key(seed, "validation", k), len(own))
            size = min(int(share * len(own)), max(len(own) - 1, 0))  # at least one sample is kept for training
            parts.append((np.sort(own[order[size:]]), np.sort(own[order[:size]])))
        if not any(len(held) for _, held in parts):
            raise BadInput(f"validation: {share:g} of the largest client's {max(map(len, self.rows))} samples is none")
        return replace(self, rows=[a for a, _ in parts], validation=[b for _, b in parts])

    def subset(self, n: int, seed: int = 0) -> Self:
        """Return the federation with only n training (and client test) samples, stratified by class.

        Args:
            n: Number of samples.
            seed: Seed of the choice.

        Returns:
            A copy.
        """
        return self.take(stratified(self.strata, n, seed))

    def take(self, kept: Rows) -> Self:
        """Return the federation with only these rows of its training set.

        Args:
            kept: Rows of `train`, each once.

        Returns:
            A copy.
        """
        new_row = np.full(len(self.train.y), -1, np.int64)
        new_row[kept] = np.arange(len(kept))

        def renumber(rows: list[Rows]) -> list[Rows]:
            return [new_row[own][new_row[own] >= 0] for own in rows]

        local = self.client_test
        if local is not None and self.client_test_from == "train":
            local = renumber(local)
        validation = None if self.validation is None else renumber(self.validation)
        rows = renumber(self.rows)
        return replace(self, train=self.train.take(kept), rows=rows, client_test=local, validation=validation)

    def hold_out(self, test: float | NDArray[np.bool_], seed: int = 0) -> Self:
        """Return the federation with some samples of each client as its test set, and all of these as the global one.

        Args:
            test: Share of each client's samples, stratified by class, or which rows of `train` to hold out.
            seed: Seed of the choice.

        Returns:
            A copy.

        Raises:
            BadInput: If no training or no test samples are left.
        """
        y = self.strata
        if isinstance(test, np.ndarray):
            is_test = test
        else:
            is_test, rule = np.zeros(len(y), bool), Fraction(check("test", test, SHARE), stratified=True)
            for k, own in enumerate(self.rows):
                is_test[rule.split(own, y, seed, k)[1]] = True
        if not is_test.any() or all(is_test[own].all() for own in self.rows):
            raise BadInput("test: the clients have too few samples to hold test samples out; give test=(x, y)")
        own_test = [own[is_test[own]] for own in self.rows]
        new_row = np.cumsum(is_test) - 1
        made = replace(self, rows=[own[~is_test[own]] for own in self.rows], client_test=None)
        return replace(
            made.take(np.flatnonzero(~is_test)),
            test=self.train.take(np.flatnonzero(is_test)),
            client_test=[new_row[own] for own in own_test],
            client_test_from="test",
        )

    # -- the partition on disk --------------------------------------------------------------------
    def fingerprint(self) -> str:
        """Return 16 characters that two federations share if each client trains and tests on the same rows in both."""
        return partition_file.fingerprint(self.rows, self.client_test, self.client_test_from)

    def save_partition(self, path: str | PathLike[str], **arrays: NDArray[Any]) -> None:
        """Write the rows of each client to a file for `load_partition`.

        Args:
            path: File to write.
            **arrays: Further arrays to keep in the file, by name.
        """
        more = {"class_names": self.names, "client_names": self.client_names, **arrays}
        partition_file.save(Path(path), self.rows, self.client_test, self.client_test_from, self.partition, more)

    def load_partition(self, path: str | PathLike[str]) -> Self:
        """Return this data with the clients of a file written by `save_partition`.

        Args:
            path: The file.

        Returns:
            A copy.

        Raises:
            BadInput: If the file can't be read or does not fit the data.
        """
        rows, local, client_test_from, text = partition_file.load(Path(path))
        limit = {"train": len(self.train.y), "test": 0 if self.test is None else len(self.test.y)}
        for own, what in [*((r, "train") for r in rows), *((r, client_test_from) for r in local or [])]:
            if own.size and (own.min() < 0 or own.max() >= limit[what]):
                raise BadInput(f"{path}: row {own.max()} is not in the {what} data of {limit[what]} samples")
        names = self.client_names if self.client_names is not None and len(self.client_names) == len(rows) else None
        return replace(
            self,
            rows=rows,
            client_test=local,
            client_test_from=client_test_from,
            partition=text,
            client_names=names,
        )


def _sample_type(data: Samples) -> Any:
    return shape_of(data.x), type_of(data.x)
