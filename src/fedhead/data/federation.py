"""A federation: samples, the clients that hold them, and the transform to model inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedhead.core.errors import BadInput
from fedhead.data import arrays, datasets, sources
from fedhead.data.allocation import Rows, stratified
from fedhead.data.arrays import Samples as Samples
from fedhead.data.augment import Transform
from fedhead.data.client_test import ClientTest, Fraction, parse
from fedhead.data.datasets import Dataset
from fedhead.data.partition import Dirichlet
from fedhead.data.partition_registry import PartitionLike
from fedhead.data.partition_registry import parse as parse_partition

Pair = tuple[Any, Any] | Samples


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their data; the clients' samples are rows of one training set.

    Args:
        train: Training samples of all clients.
        rows: Training samples of each client, as rows of `train`.
        classes: Number of classes.
        test: Global test set.
        client_test: Test samples of each client, as rows of `train` or `test`.
        client_test_from: Which of the two they are rows of.
        transform: Maps stored samples to model inputs.
        public: Samples that all parties hold (KT-pFL).
        names: Names of the classes.
        title: Name of the data in records.
        partition: Name of the partition in records.

    Raises:
        BadInput: If the parts do not fit together.

    >>> fed = Federation.from_arrays(np.zeros((6, 2)), [0, 1, 0, 1, 0, 1], partition="iid", clients=3)
    >>> len(fed), fed.input_shape, fed.counts().sum()
    (3, (2,), np.int64(6))
    """

    train: Samples
    rows: list[Rows]
    classes: int
    test: Samples | None = None
    client_test: list[Rows] | None = None
    client_test_from: Literal["train", "test"] = "train"
    transform: Transform = field(default_factory=Transform)
    public: Samples | None = None
    names: Sequence[str] | None = None
    title: str = "your data"
    partition: str = "given"

    def __post_init__(self) -> None:
        if not self.rows:
            raise BadInput("a federation needs at least one client")
        for what, data in (("training data", self.train), ("test data", self.test)):
            if data is not None:
                arrays.check_classes(data, self.classes, what)
        if self.test is not None and self.test.x.shape[1:] != self.train.x.shape[1:]:
            raise BadInput(
                f"test samples of shape {tuple(self.test.x.shape[1:])} do not match training samples of "
                f"{self.input_shape}"
            )
        if self.public is not None and _sample_type(self.public) != _sample_type(self.train):
            raise BadInput(
                f"public samples of shape {tuple(self.public.x.shape[1:])} ({self.public.x.dtype}) do not match the "
                f"clients', {self.input_shape} ({self.train.x.dtype}): their models can't take both"
            )
        self.transform.check(self.input_shape)

    # -- properties -------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.rows)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of training samples per client."""
        return tuple(len(rows) for rows in self.rows)

    def counts(self) -> NDArray[np.int64]:
        """Count training samples by client and class, [clients, classes]."""
        y = self.train.y.numpy()
        return np.stack([np.bincount(y[rows], minlength=self.classes) for rows in self.rows]).astype(np.int64)

    # -- constructors -----------------------------------------------------------------------------
    @classmethod
    def dirichlet(
        cls, x: Any, y: Any, clients: int, alpha: float, test: Pair | None = None, seed: int = 0, **settings: Any
    ) -> Federation:
        """Partition arrays by a Dirichlet distribution: the smaller alpha, the more the clients' classes differ.

        Args:
            x: Samples, see `from_arrays`.
            y: Labels.
            clients: Number of clients.
            alpha: Concentration of the Dirichlet distribution.
            test: Global test set (x, y).
            seed: Seed of the partition.
            **settings: Further arguments of `from_arrays`.
        """
        return cls.from_arrays(x, y, Dirichlet(alpha), clients, test, seed, **settings)

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        partition: PartitionLike = "iid",
        clients: int = 10,
        test: Pair | None = None,
        seed: int = 0,
        client_test: str | float | ClientTest | None = None,
        transform: Transform | None = None,
        classes: int | None = None,
        names: Sequence[str] | None = None,
        public: Pair | None = None,
        title: str = "your data",
    ) -> Federation:
        """Partition arrays or tensors over clients.

        Args:
            x: Samples. Images are uint8, [N, H, W], [N, H, W, C] or [N, C, H, W]; anything else becomes float32.
            y: Labels, [N]: class indices or class names.
            partition: A partition or its name, such as "dirichlet(0.1)", or a function `(y, clients, rng)` that
                returns one array of rows per client.
            clients: Number of clients.
            test: Global test set (x, y).
            seed: Seed of the partition.
            client_test: Test set of each client: a share of its samples (0.3, "stratified(0.3)"), or "matched", drawn
                from the test set with the client's class distribution.
            transform: Maps stored samples to model inputs; by default images are scaled to -1 … 1.
            classes: Number of classes; found in the data if None.
            names: Names of the classes.
            public: Samples (x, y) that all parties hold.
            title: Name of the data in records.

        Raises:
            BadInput: If the data is inconsistent or can't be partitioned.
        """
        train, names = arrays.samples(x, y, names, "training")
        rule = parse_partition(partition)
        held = None if test is None else arrays.samples(test[0], test[1], names, "test")[0]
        classes = _classes(classes, names, train, held)
        arrays.check_classes(train, classes, "training data")
        rows = rule.split(train.y.numpy(), classes, clients, seed)
        fed = cls(
            train,
            rows,
            classes,
            test=held,
            transform=_default(transform, train),
            public=None if public is None else arrays.samples(public[0], public[1], what="public")[0],
            names=names,
            title=title,
            partition=str(rule),
        )
        return fed.with_client_test(client_test, seed)

    @classmethod
    def from_sites(
        cls,
        sites: Iterable[Pair],
        test: Pair | None = None,
        seed: int = 0,
        client_test: str | float | ClientTest | None = None,
        transform: Transform | None = None,
        classes: int | None = None,
        names: Sequence[str] | None = None,
        title: str = "your data",
    ) -> Federation:
        """Create a federation from data that is already split.

        Args:
            sites: One pair (x, y) per client; it may be empty.
            test: Global test set (x, y).
            seed: Seed of the clients' test sets.
            client_test: Test set of each client, see `from_arrays`.
            transform: Maps stored samples to model inputs.
            classes: Number of classes; found in the data if None.
            names: Names of the classes.
            title: Name of the data in records.

        Raises:
            BadInput: If the clients' data is empty or inconsistent.
        """
        sites = list(sites)
        for k, site in enumerate(sites):
            if not isinstance(site, tuple | list) or len(site) != 2:
                raise BadInput(f"site {k} is {type(site).__name__}: give each as a pair (x, y)")
        pairs = [(x, y) for x, y in sites]
        if names is None:
            words = [np.asarray(y) for _, y in [*pairs, *([test] if test else [])] if not torch.is_tensor(y)]
            if any(w.dtype.kind in "USO" for w in words):
                names = sorted({str(word) for own in words for word in own})
        full = [(k, arrays.samples(x, y, names, f"site {k}")[0]) for k, (x, y) in enumerate(pairs) if len(y)]
        if not full:
            raise BadInput("no site has any samples")
        for k, own in full:
            if own.x.shape[1:] != full[0][1].x.shape[1:] or own.x.dtype != full[0][1].x.dtype:
                raise BadInput(
                    f"site {k} holds {own.x.dtype} samples of shape {tuple(own.x.shape[1:])}, site {full[0][0]} "
                    f"{full[0][1].x.dtype} of {tuple(full[0][1].x.shape[1:])}: all sites need the same shape and type"
                )
        train = Samples(torch.cat([own.x for _, own in full]), torch.cat([own.y for _, own in full]))
        held = None if test is None else arrays.samples(test[0], test[1], names, "test")[0]
        ends = np.cumsum([len(y) for _, y in pairs])
        rows = [np.arange(end - len(y), end, dtype=np.int64) for end, (_, y) in zip(ends, pairs, strict=True)]
        fed = cls(
            train,
            rows,
            _classes(classes, names, train, held),
            test=held,
            transform=_default(transform, train),
            names=names,
            title=title,
        )
        return fed.with_client_test(client_test, seed)

    @classmethod
    def from_dataset(cls, dataset: Any, **settings: Any) -> Federation:
        """Create a federation from a torch `Dataset` of (sample, label) pairs.

        Args:
            dataset: The training data.
            **settings: Arguments of `from_arrays`; `test` may be a `Dataset` too.
        """
        if "test" in settings and settings["test"] is not None and not isinstance(settings["test"], tuple):
            settings["test"] = sources.torch_dataset(settings["test"])
        return cls.from_arrays(*sources.torch_dataset(dataset), **settings)

    @classmethod
    def from_huggingface(cls, dataset: Any, image: str = "image", label: str = "label", **settings: Any) -> Federation:
        """Create a federation from a Hugging Face `Dataset`.

        Args:
            dataset: The training data.
            image: Column of the samples.
            label: Column of the labels.
            **settings: Arguments of `from_arrays`; `test` may be a `Dataset` too.
        """
        if "test" in settings and settings["test"] is not None and not isinstance(settings["test"], tuple):
            settings["test"] = sources.columns(settings["test"], image, label)[:2]
        x, y, names = sources.columns(dataset, image, label)
        return cls.from_arrays(x, y, **{"names": names, **settings})

    @classmethod
    def from_npz(cls, path: str | PathLike[str], **settings: Any) -> Federation:
        """Create a federation from an .npz file with x and y, and optionally x_test and y_test.

        Args:
            path: The file.
            **settings: Arguments of `from_arrays`.
        """
        x, y, test = sources.npz(Path(path))
        try:
            return cls.from_arrays(x, y, **{"test": test, "title": Path(path).stem, **settings})
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None

    @classmethod
    def from_folder(cls, path: str | PathLike[str], size: int | None = None, **settings: Any) -> Federation:
        """Create a federation from a folder of images.

        The folder holds one folder per class, or one folder per client that holds the class folders. Top-level folders
        named train and test (or val) are the two parts of the data.

        Args:
            path: The folder.
            size: Resizes images to size × size; without it all images must have the same size.
            **settings: Arguments of `from_arrays` or `from_sites`.
        """
        found = sources.folder(Path(path), size)
        settings = {"names": found.names, "test": found.test, "title": Path(path).name, **settings}
        if found.sites:
            return cls.from_sites([(s.x, s.y) for s in found.parts], **settings)
        return cls.from_arrays(found.parts[0].x, found.parts[0].y, **settings)

    @classmethod
    def load(
        cls,
        name: str | Dataset | Callable[[], Any],
        partition: PartitionLike = "iid",
        clients: int = 10,
        seed: int = 0,
        data_dir: str | PathLike[str] | None = None,
        client_test: str | float | ClientTest | None = None,
        augment: str | None = None,
        normalize: str | None = None,
        samples: int | None = None,
        test_samples: int | None = None,
        download: bool = True,
        public: str | Dataset | Callable[[], Any] | None = None,
        public_samples: int | None = None,
    ) -> Federation:
        """Partition a registered data set (`fedhead ls datasets`) over clients.

        Args:
            name: Name of the data set, a function that returns `(x, y, x_test, y_test)`, or a `Dataset`.
            partition: A partition or its name, such as "dirichlet(0.1)", or a function `(y, clients, rng)` that
                returns one array of rows per client.
            clients: Number of clients.
            seed: Seed of the partition and of subsets.
            data_dir: Data folder; by default $FEDHEAD_DATA or the user's cache.
            client_test: Test set of each client, see `from_arrays`.
            augment: Augmentation; by default that of the data set.
            normalize: Normalization; by default that of the data set.
            samples: Number of training samples to keep, stratified by class.
            test_samples: Number of test samples to keep, stratified by class.
            download: Whether downloads are allowed.
            public: Data set of which all parties hold samples (KT-pFL): test samples of another data set, or training
                samples of the same one, which are then removed from the clients.
            public_samples: Their number; by default 3000 of another data set and a fifth of the same.

        Raises:
            BadInput: If a name is unknown or the data can't be found.
        """
        entry = datasets.get(name)
        other = None if public is None else datasets.get(public)
        train, test = entry.load(data_dir, download=download)
        if samples is not None:
            train = train.take(stratified(train.y.numpy(), samples, seed))
        if test_samples is not None:
            test = test.take(stratified(test.y.numpy(), test_samples, seed))
        shared = None
        if other is not None and other.name == entry.name:
            held = stratified(train.y.numpy(), public_samples or max(1, len(train.y) // 5), seed)
            shared, train = train.take(held), train.take(np.setdiff1d(np.arange(len(train.y)), held))
            if not len(train.y):
                raise BadInput(
                    f"public_samples: {public_samples} leaves no training samples of {entry.name} for the clients"
                )
        elif other is not None:
            shared = other.part("test", data_dir, download)
            shared = shared.take(stratified(shared.y.numpy(), min(public_samples or 3000, len(shared.y)), seed))
        return cls.from_arrays(
            train.x,
            train.y,
            partition,
            clients,
            test,
            seed,
            client_test,
            entry.transform.replace(augment, normalize),
            entry.classes,
            entry.names,
            shared,
            title=entry.name,
        )

    # -- modified copies --------------------------------------------------------------------------
    def with_client_test(self, client_test: str | float | ClientTest | None, seed: int = 0) -> Federation:
        """Return the federation with a test set for each client; see `from_arrays`."""
        rule = parse(client_test)
        if rule is None:
            return self
        y = self.train.y.numpy()
        if isinstance(rule, Fraction):
            parts = [rule.split(rows, y, seed, k) for k, rows in enumerate(self.rows)]
            return replace(
                self, rows=[a for a, _ in parts], client_test=[b for _, b in parts], client_test_from="train"
            )
        if self.test is None:
            raise BadInput("client_test: matched draws from the global test set, but there is none; give test=(x, y)")
        held, counts = self.test.y.numpy(), self.counts()
        local = [rule.draw(own, int(counts.sum()), held, seed, k) for k, own in enumerate(counts)]
        return replace(self, client_test=local, client_test_from="test")

    def subset(self, n: int, seed: int = 0) -> Federation:
        """Return the federation with only n training (and client test) samples, stratified by class."""
        kept = stratified(self.train.y.numpy(), n, seed)
        new_row = np.full(len(self.train.y), -1, np.int64)
        new_row[kept] = np.arange(len(kept))

        def renumber(rows: list[Rows]) -> list[Rows]:
            return [new_row[own][new_row[own] >= 0] for own in rows]

        local = (
            renumber(self.client_test)
            if self.client_test is not None and self.client_test_from == "train"
            else self.client_test
        )
        return replace(self, train=self.train.take(kept), rows=renumber(self.rows), client_test=local)

    # -- the partition on disk --------------------------------------------------------------------
    def save_partition(self, path: str | PathLike[str]) -> None:
        """Write the rows of each client to a file for `load_partition`."""
        sources.save_partition(Path(path), self.rows, self.client_test, self.client_test_from, self.partition)

    def load_partition(self, path: str | PathLike[str]) -> Federation:
        """Return this data with the clients of a file written by `save_partition`.

        Raises:
            BadInput: If the file can't be read or does not fit the data.
        """
        rows, local, client_test_from, text = sources.load_partition(Path(path))
        limit = {"train": len(self.train.y), "test": 0 if self.test is None else len(self.test.y)}
        for own, what in [*((r, "train") for r in rows), *((r, client_test_from) for r in local or [])]:
            if own.size and (own.min() < 0 or own.max() >= limit[what]):
                raise BadInput(f"{path}: row {own.max()} is not in the {what} data of {limit[what]} samples")
        return replace(self, rows=rows, client_test=local, client_test_from=client_test_from, partition=text)


def _classes(classes: int | None, names: Sequence[str] | None, train: Samples, test: Samples | None) -> int:
    if classes is not None and classes < 1:
        raise BadInput(f"classes: {classes} is too few, give at least 1")
    if classes is not None or names is not None:
        return classes if classes is not None else len(names or ())
    return 1 + max(int(data.y.max()) for data in (train, test) if data is not None)


def _sample_type(data: Samples) -> tuple[torch.Size, torch.dtype]:
    return data.x.shape[1:], data.x.dtype


def _default(transform: Transform | None, data: Samples) -> Transform:
    """Return the default transform: images to -1 … 1, features unchanged."""
    if transform is not None:
        return transform
    return Transform.named(normalize="half") if data.x.dtype == torch.uint8 else Transform()
