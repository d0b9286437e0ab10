"""The data of a federation: samples, the clients that own them, and the transform to model inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.system import html
from fedhead.core.system.errors import require
from fedhead.core.tree.inputs import describe, map_inputs, model_types, shape_of, type_of
from fedhead.data.inputs import targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.missing_values import MissingValues
from fedhead.data.partitions.allocation import Rows
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import AnyTransform, check_kind

_NOUNS = {"multiclass": "classes", "binary": "classes", "multilabel": "labels", "regression": "targets"}


@dataclass(frozen=True, eq=False, repr=False)
class FederationData:
    """Fields, checks and properties of a `Federation`, whose docstring describes the fields."""

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
        require(self.rows, "a federation needs at least one client")
        for what, given, count in (
            ("names", self.names, self.classes),
            ("client_names", self.client_names, len(self.rows)),
        ):
            if given is not None:
                object.__setattr__(self, what, tuple(str(name) for name in given))
                require(len(given) == count, f"{what}: {len(given)} names were given, {count} are needed")
        for what, samples in (("training", self.train), ("test", self.test), ("public", self.public)):
            if samples is None:
                continue
            require(
                _sample_type(samples) == _sample_type(self.train),
                f"{what} samples of shape {describe(samples.x)} do not match training samples of "
                f"{describe(self.train.x)}: a model can't take both",
            )
            if what != "public" and len(samples.y):
                targets.check_targets(samples.y, self.classes, self.objective, f"{what} data")
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


def _sample_type(data: Samples) -> Any:
    return shape_of(data.x), type_of(data.x)
