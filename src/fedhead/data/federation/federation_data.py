"""Data of a federation: samples, their clients, and the transform to model inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.components.parameters import check
from fedhead.core.system.errors import BadInput, require
from fedhead.core.training import random
from fedhead.core.tree.inputs import describe, map_inputs, model_types, shape_of, type_of
from fedhead.data.inputs import targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.conversion import concatenate
from fedhead.data.inputs.missing_values import MissingValues
from fedhead.data.inputs.table_columns import TableColumns
from fedhead.data.partitions.allocation import Indices, stratified
from fedhead.data.partitions.client_test_sets import SHARE, ClientTest, Fraction, parse
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import AnyTransform, check_kind

_NOUNS = {"multiclass": "classes", "binary": "classes", "multilabel": "labels", "regression": "targets"}


@dataclass(frozen=True, eq=False, repr=False)
class FederationData:
    """Base class of `Federation` with its fields, checks, properties and modified copies."""

    train: Samples
    indices: list[Indices]
    classes: int
    test: Samples | None = None
    client_test: list[Indices] | None = None
    client_test_from: Literal["train", "test"] = "train"
    validation: list[Indices] | None = None
    transform: AnyTransform = field(default_factory=Transform)
    public: Samples | None = None
    class_names: Sequence[str] | None = None
    client_names: Sequence[str] | None = None
    title: str = "your data"
    partition: str = "natural"
    objective: str = "multiclass"
    missing: Mapping[str, MissingValues] = field(default_factory=dict)
    columns: TableColumns | None = None
    fitted: str | None = None

    def __repr__(self) -> str:
        """Return a summary of sizes."""
        samples = sum(len(indices) for indices in self.indices)
        test = 0 if self.test is None else len(self.test.y)
        shape = shape_of(self.train.x)
        return (
            f"{type(self).__name__}({self.title}, {self.partition}: {len(self.indices)} clients with {samples:,} "
            f"samples of shape {shape}, {self.classes} {_NOUNS[self.objective]}, {test:,} test samples)"
        )

    def __post_init__(self) -> None:
        targets.objective_of(self.objective)
        require(self.indices, "a federation needs at least one client")
        for key, given, count in (
            ("class_names", self.class_names, self.classes),
            ("client_names", self.client_names, len(self.indices)),
        ):
            if given is not None:
                object.__setattr__(self, key, tuple(str(name) for name in given))
                require(len(given) == count, f"{key}: {len(given)} names were given, {count} are needed")
        for part, samples in (("training", self.train), ("test", self.test), ("public", self.public)):
            if samples is None:
                continue
            require(
                _sample_type(samples) == _sample_type(self.train),
                f"{part} samples of shape {describe(samples.x)} do not match training samples of "
                f"{describe(self.train.x)}: a model can't take both",
            )
            if part != "public" and len(samples.y):
                targets.check_targets(samples.y, self.classes, self.objective, f"{part} data")
        check_kind(self.transform, shape_of(self.train.x))

    # -- properties -------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.indices)

    @property
    def input_shape(self) -> Any:
        """Shape of one model input: a tuple, or a dictionary of tuples for named inputs."""
        return self.transform.output_shape(shape_of(self.train.x))

    @property
    def input_types(self) -> Any:
        """Type of the model inputs, or a dictionary for named inputs."""
        return model_types(self.train.x)

    @property
    def largest_token(self) -> Any:
        """Largest token of all samples, or a dictionary for named inputs; None for inputs other than tokens."""
        parts = [data.x for data in (self.train, self.test, self.public) if data is not None and len(data.y)]

        def largest(*each: Tensor) -> int | bool | None:
            if each[0].dtype == torch.bool:
                return True
            return max(int(t.max()) for t in each) if each[0].dtype == torch.int64 else None

        return map_inputs(largest, *parts)

    @property
    def has_classes(self) -> bool:
        """True if each sample has one class."""
        return targets.objective_of(self.objective).has_classes

    @property
    def outputs(self) -> int:
        """Number of outputs that a model needs."""
        return targets.objective_of(self.objective).outputs(self.classes)

    @property
    def strata(self) -> NDArray[np.int64]:
        """Class of each training sample, for stratification; 0 for objectives without classes."""
        return targets.strata(self.train.y, self.objective)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of training samples per client."""
        return tuple(len(indices) for indices in self.indices)

    def counts(self) -> NDArray[np.int64]:
        """Count training samples per client and class, [clients, classes]; [clients, 1] without classes."""
        if not self.has_classes:
            return np.array(self.sizes, np.int64)[:, None]
        y = self.train.y.numpy()
        return np.stack([np.bincount(y[indices], minlength=self.classes) for indices in self.indices]).astype(np.int64)

    # -- modified copies --------------------------------------------------------------------------
    def with_client_test(self, client_test: str | float | ClientTest | None, seed: int = 0) -> Self:
        """Return the federation with a test set for each client; see `Federation.from_arrays`.

        Args:
            client_test: A share of the client's samples, or `matched`.
            seed: Seed of the choice.

        Returns:
            A copy, or the federation itself if `client_test` is None.
        """
        rule = parse(client_test)
        if rule is None:
            return self
        if isinstance(rule, Fraction):
            train_indices, test_indices = self._split(rule, seed, "local test")
            return replace(self, indices=train_indices, client_test=test_indices, client_test_from="train")
        if self.test is None:
            raise BadInput("client_test: matched draws from the global test set, but there is none; give test=(x, y)")
        require(self.has_classes, "client_test: matched needs classes; give a share of each client's samples: 0.3")
        y, counts = self.test.y.numpy(), self.counts()
        test_indices = [rule.draw(count, int(counts.sum()), y, seed, k) for k, count in enumerate(counts)]
        return replace(self, client_test=test_indices, client_test_from="test")

    def with_validation(self, share: float | None, seed: int = 0) -> Self:
        """Return the federation with a share of each client's training samples held out for validation.

        Args:
            share: Share of each client's training samples; None: no validation samples.
            seed: Seed of the selection, drawn by key for each client.

        Returns:
            A copy, or the federation itself if nothing changes.
        """
        if share is None or self.validation is not None:
            return self
        train_indices, validation = self._split(Fraction(check("validation", share, SHARE)), seed, "validation")
        return replace(self, indices=train_indices, validation=validation)

    def _split(self, rule: Fraction, seed: int, purpose: str) -> tuple[list[Indices], list[Indices]]:
        """Split each client's indices into training samples and the held-out share."""
        strata = self.strata
        parts = [rule.split(indices, strata, random.key(seed, purpose, k)) for k, indices in enumerate(self.indices)]
        return [kept for kept, _ in parts], [chosen for _, chosen in parts]

    def subset(self, n: int, seed: int = 0) -> Self:
        """Return the federation with only n training (and client test) samples, stratified by class.

        Args:
            n: Number of samples.
            seed: Seed of the choice.

        Returns:
            A copy.
        """
        return self.take(stratified(self.strata, n, seed))

    def take(self, kept: Indices) -> Self:
        """Return the federation with a subset of its training set.

        Args:
            kept: Distinct indices into `train`.

        Returns:
            A copy.
        """
        new_index = np.full(len(self.train.y), -1, np.int64)
        new_index[kept] = np.arange(len(kept))

        def renumber(clients: list[Indices] | None) -> list[Indices] | None:
            return None if clients is None else [new_index[indices][new_index[indices] >= 0] for indices in clients]

        return replace(
            self,
            train=self.train.take(kept),
            indices=renumber(self.indices) or [],
            client_test=renumber(self.client_test) if self.client_test_from == "train" else self.client_test,
            validation=renumber(self.validation),
        )

    def hold_out(self, test: float | NDArray[np.bool_], seed: int = 0) -> Self:
        """Return the federation with held-out samples as test sets of the clients; together they are the global one.

        Args:
            test: Share of each client's samples, stratified by class, or a mask of the samples of `train` to hold out.
            seed: Seed of the choice.

        Returns:
            A copy.

        Raises:
            BadInput: If no training or no test samples are left.
        """
        if isinstance(test, np.ndarray):
            is_test = test
        else:
            _, chosen = self._split(Fraction(check("test", test, SHARE), stratified=True), seed, "local test")
            is_test = np.zeros(len(self.train.y), bool)
            is_test[np.concatenate(chosen)] = True
        require(
            is_test.any() and not all(is_test[indices].all() for indices in self.indices),
            "test: the clients have too few samples to hold test samples out; give test=(x, y)",
        )
        test_index = np.cumsum(is_test) - 1
        training = replace(self, indices=[indices[~is_test[indices]] for indices in self.indices], client_test=None)
        return replace(
            training.take(np.flatnonzero(~is_test)),
            test=self.train.take(np.flatnonzero(is_test)),
            client_test=[test_index[indices[is_test[indices]]] for indices in self.indices],
            client_test_from="test",
        )

    def samples_of(self, client: int) -> Samples:
        """Return all samples of a client, including those held out for testing and validation.

        Args:
            client: The client.

        Returns:
            The samples.
        """
        indices = [self.indices[client], *([] if self.validation is None else [self.validation[client]])]
        if self.client_test is None or self.client_test_from == "train" or self.test is None:
            own_test = [] if self.client_test is None else [self.client_test[client]]
            return self.train.take(np.sort(np.concatenate([*indices, *own_test])))
        return concatenate(
            [self.train.take(np.sort(np.concatenate(indices))), self.test.take(self.client_test[client])]
        )


def _sample_type(data: Samples) -> Any:
    return shape_of(data.x), type_of(data.x)
