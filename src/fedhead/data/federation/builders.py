"""Parts of a federation's constructors: the test set, the partition and the columns of data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhead.core.components.parameters import check
from fedhead.core.system.errors import require
from fedhead.data.federation import preprocessing
from fedhead.data.federation.federation_data import FederationData
from fedhead.data.inputs import targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.conversion import Converted, Pair, convert
from fedhead.data.inputs.named_inputs import LayoutLike
from fedhead.data.partitions.allocation import Indices, stratified_share
from fedhead.data.partitions.client_test_sets import SHARE, ClientTest
from fedhead.data.partitions.partition import IID, Partition
from fedhead.data.partitions.partition_registry import FromFunction
from fedhead.data.transforms.named_transforms import AnyTransform, default_transform

CLIENTS = 10  # default number of clients of a random partition
F = TypeVar("F", bound=FederationData)


@dataclass(frozen=True)
class ArrayOptions:
    """Arguments that `Federation.from_arrays` and `Federation.from_clients` share."""

    transform: AnyTransform | None = None
    classes: int | None = None
    class_names: Sequence[str] | None = None
    public: Pair | None = None
    title: str = "your data"
    layout: LayoutLike = None
    missing: str = "refuse"
    augment: str | None = None
    normalize: str | None = None
    resize: int | None = None
    objective: str = "multiclass"

    def convert(self, parts: Mapping[str, Pair], test: Pair | Mapping[str, Pair] | None) -> Converted:
        """Convert the training and test data; see `fedhead.data.inputs.conversion.convert`."""
        missing = preprocessing.allows_missing(self.missing)
        return convert(parts, test, self.public, self.class_names, self.classes, self.layout, missing, self.objective)

    def build(
        self,
        cls: type[F],
        converted: Converted,
        train: Samples,
        indices: list[Indices],
        share: float | NDArray[np.bool_] | None,
        own_test: str | float | ClientTest | None,
        seed: int,
        **parts: Any,
    ) -> F:
        """Return a federation of converted samples.

        Args:
            cls: Class of the federation.
            converted: Converted samples.
            train: Training samples.
            indices: Indices of each client's training samples.
            share: Share or mask of each client's samples to hold out for testing.
            own_test: Test set of each client, `client_test` of `Federation.from_arrays`.
            seed: Seed of the test sets.
            **parts: Further fields of the federation.
        """
        federation = cls(
            train,
            indices,
            converted.classes.count,
            transform=default_transform(train.x) if self.transform is None else self.transform,
            public=converted.public,
            class_names=converted.classes.names,
            title=self.title,
            objective=self.objective,
            **parts,
        )
        if share is not None:
            federation = federation.hold_out(share)
        federation = federation.with_client_test(own_test, seed)
        return preprocessing.prepare(federation, self.missing, self.augment, self.normalize, self.resize)


def pair_or_share(test: Any) -> tuple[Pair | None, float | NDArray[np.bool_] | None]:
    """Distinguish a given test set from a share or mask of samples to hold out."""
    if isinstance(test, int | float):
        return None, check("test", test, SHARE)
    if isinstance(test, np.ndarray) and test.dtype == bool:
        return None, test
    return test, None


def split_test(train: Samples, share: float | NDArray[np.bool_], objective: str) -> tuple[Samples, Samples]:
    """Split samples into training and test samples, by a share of each class or by a mask.

    A share is drawn with a constant seed, so that all seeds of a run are tested on the same samples.
    """
    if isinstance(share, float):
        kept, chosen = stratified_share(targets.strata(train.y, objective), share, seed=0)
    else:
        kept, chosen = np.flatnonzero(~share), np.flatnonzero(share)
    return train.take(kept), train.take(chosen)


def partition_indices(
    train: Samples, rule: Partition, classes: int, clients: int | None, objective: str, seed: int
) -> list[Indices]:
    """Partition samples over clients; raise `BadInput` if the partition needs classes and the objective has none."""
    has_classes = targets.objective_of(objective).has_classes
    require(
        has_classes or isinstance(rule, FromFunction | IID),
        f"partition: {rule} distributes classes, and objective={objective} has none: use iid, groups (natural "
        "clients), or a function of your own",
    )
    y = train.y.numpy() if isinstance(rule, FromFunction) else targets.strata(train.y, objective)
    return rule.split(y, classes, CLIENTS if clients is None else clients, seed)


def consecutive_indices(sizes: Sequence[int]) -> list[Indices]:
    """Return the indices of clients with consecutive samples."""
    return [np.arange(end - size, end, dtype=np.int64) for end, size in zip(np.cumsum(sizes), sizes, strict=True)]


def merge_layouts(layout: LayoutLike, known: Any) -> LayoutLike:
    """Merge the layout given by the user with the layout of the columns that the reader encoded."""
    if isinstance(layout, Mapping) and isinstance(known, Mapping):
        return {**known, **layout}
    return layout if layout is not None else known or None
