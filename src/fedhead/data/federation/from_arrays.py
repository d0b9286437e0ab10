"""Federations from arrays in memory: partitioned, or grouped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedhead.core.components.parameters import check
from fedhead.core.system.errors import BadInput
from fedhead.data.federation import preprocessing
from fedhead.data.federation.client_data import ClientData
from fedhead.data.inputs import targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.conversion import Pair, convert
from fedhead.data.inputs.labels import Classes
from fedhead.data.inputs.named_inputs import LayoutLike
from fedhead.data.partitions.allocation import Rows, stratified_share
from fedhead.data.partitions.client_test_sets import SHARE, ClientTest
from fedhead.data.partitions.groups import rows_of_groups, test_rows_of_groups
from fedhead.data.partitions.partition import IID, Dirichlet, Natural, Partition
from fedhead.data.partitions.partition_registry import FromFunction, PartitionLike
from fedhead.data.partitions.partition_registry import parse as parse_partition
from fedhead.data.transforms.named_transforms import AnyTransform, default_transform

CLIENTS = 10  # of a random partition, where no number is given


class FromArrays(ClientData):
    """The ways to create a `Federation` from arrays in memory."""

    @classmethod
    def dirichlet(
        cls,
        x: Any,
        y: Any,
        clients: int,
        alpha: float,
        test: Pair | float | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Self:
        """Partition arrays by a Dirichlet distribution: the smaller alpha, the more the clients' classes differ.

        Args:
            x: Samples, see `from_arrays`.
            y: Labels.
            clients: Number of clients.
            alpha: Concentration of the Dirichlet distribution.
            test: Global test set (x, y), or the share of the samples that is held out for it.
            seed: Seed of the partition.
            **settings: Further arguments of `from_arrays`.

        Returns:
            The federation.
        """
        return cls.from_arrays(x, y, Dirichlet(alpha), clients, test, seed, **settings)

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        partition: PartitionLike | None = None,
        clients: int | None = None,
        test: Pair | float | NDArray[np.bool_] | None = None,
        seed: int = 0,
        client_test: str | float | ClientTest | None = None,
        transform: AnyTransform | None = None,
        classes: int | None = None,
        names: Sequence[str] | None = None,
        public: Pair | None = None,
        title: str = "your data",
        *,
        layout: LayoutLike = None,
        groups: Any = None,
        group_names: Sequence[str] | None = None,
        test_groups: Any = None,
        missing: Literal["refuse", "mean"] = "refuse",
        augment: str | None = None,
        normalize: str | None = None,
        resize: int | None = None,
        objective: str = "multiclass",
    ) -> Self:
        """Partition arrays or tensors over clients.

        Args:
            x: Samples, [N, …]; a dictionary of such for models with several inputs; or a list of samples that differ
                in length, which become the inputs x and mask.
            y: Labels, [N]: numbers or words. Class indices 0, 1, 2 … are kept; other labels are numbered in order,
                and are the names of the classes.
            partition: A partition or its name, such as "dirichlet(0.1)", or a function `(y, clients, rng)` that
                returns one array of rows per client; by default iid, or the groups.
            clients: Number of clients; by default 10, or the number of groups.
            test: Global test set (x, y), or the share of the samples that is held out for it, or which samples are,
                booleans [N]. With groups those of each client are also its own test set.
            seed: Seed of the partition.
            client_test: Test set of each client: a share of its samples (0.3, "stratified(0.3)"), or "matched", drawn
                from the test set with the client's class distribution.
            transform: Maps stored samples to model inputs; by default images are scaled to -1 … 1.
            classes: Number of classes, if y holds class indices of which some may be absent; found in the data if None.
            names: Names of the classes, in order.
            public: Samples (x, y) that all parties hold.
            title: Name of the data in records.
            layout: Meaning of x: "nhw", "nhwc" or "nchw" images (N samples, Height, Width, Channels), "features", which
                become float32, or "tokens", which stay integers; one for each entry of a dictionary. By default it is
                inferred, and x is refused if it can be read in several ways.
            groups: Client of each sample, [N], numbers or words, for data with natural clients.
            group_names: Names of the groups, if these are numbers 0, 1, 2 ….
            test_groups: Client of each sample of a test set (x, y), likewise: these are the client's own test samples.
            missing: What to do with NaN in tables: "refuse" them, or "mean": fill in the feature's mean over all
                clients and add one indicator column per such feature.
            augment: Augmentation in place of the transform's, such as "flip".
            normalize: Normalization in place of the transform's: its name, or "standard", by the mean and deviation of
                each feature or channel over all clients.
            resize: Height and width that images are resized to on the compute device (bicubic), as a pretrained model
                needs them; by default they keep their size.
            objective: What y holds: "multiclass" or "binary" (2 classes, a model with one logit), "multilabel" (0 or 1
                for each label, [N, L]) or "regression" (numbers, [N] or [N, T]).

        Returns:
            The federation.

        Raises:
            BadInput: If the data is inconsistent, can be read in several ways, or can't be partitioned.
        """
        pair, share = pair_or_share(test)
        allowed = preprocessing.allows_missing(missing)
        found = convert({"training": (x, y)}, pair, public, names, classes, layout, allowed, objective)
        rule = Natural() if partition is None and groups is not None else parse_partition(partition or "iid")
        train, held, client_names = found.parts[0], found.test, None
        if isinstance(rule, Natural):
            rows, client_names = rows_of_groups(groups, group_names, len(train.y), clients)
        elif groups is not None:
            raise BadInput(f"groups: they decide the clients, leave partition={rule} out (or groups)")
        else:
            if isinstance(share, float):
                kept, chosen = stratified_share(_strata(train, objective), share, seed)
                train, held = train.take(kept), train.take(chosen)
            elif share is not None:
                train, held = train.take(np.flatnonzero(~share)), train.take(np.flatnonzero(share))
            parted = _partitioned(train, objective, rule)
            rows = rule.split(parted, found.classes.count, CLIENTS if clients is None else clients, seed)
        made = cls._assembled(
            train,
            rows,
            found.classes,
            test=held,
            public=found.public,
            title=title,
            partition=str(rule),
            transform=transform,
            client_names=client_names,
            objective=objective,
        )
        if isinstance(rule, Natural) and share is not None:
            made = made.hold_out(share, seed)
        if test_groups is not None:
            if client_names is None or pair is None or held is None:
                raise BadInput("test_groups: these are for a test set (x, y) of clients that groups name")
            own = test_rows_of_groups(test_groups, group_names, len(held.y), client_names)
            made = replace(made, client_test=own, client_test_from="test")
        return preprocessing.prepare(made.with_client_test(client_test, seed), missing, augment, normalize, resize)

    @classmethod
    def _assembled(
        cls, train: Samples, rows: list[Rows], classes: Classes, *, transform: AnyTransform | None, **parts: Any
    ) -> Self:
        transform = default_transform(train.x) if transform is None else transform
        return cls(train, rows, classes.count, names=classes.names, transform=transform, **parts)


def _strata(train: Samples, objective: str) -> NDArray[Any]:
    """Return the classes by which shares are stratified; where there are none, one class for all samples."""
    has_classes = targets.objective_of(objective).has_classes
    return train.y.numpy() if has_classes else np.zeros(len(train.y), np.int64)


def _partitioned(train: Samples, objective: str, rule: Partition) -> NDArray[Any]:
    """Return what a partition goes by; refuses one that distributes classes where there are none."""
    if targets.objective_of(objective).has_classes or isinstance(rule, FromFunction):
        return train.y.numpy()
    if not isinstance(rule, IID):
        raise BadInput(
            f"partition: {rule} distributes classes, and objective={objective} has none: use iid, groups (natural "
            "clients), or a function of your own"
        )
    return _strata(train, objective)


def pair_or_share(test: Any) -> tuple[Pair | None, float | NDArray[np.bool_] | None]:
    """Return a test set that is given, or the share of the samples or those samples to hold out for one."""
    if isinstance(test, int | float):
        return None, check("test", test, SHARE)
    if isinstance(test, np.ndarray) and test.dtype == bool:
        return None, test
    return test, None
