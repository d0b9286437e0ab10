"""A federation: samples, who holds which of them, and how they become a model's input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedhead.core.errors import BadInput
from fedhead.data import arrays, sources
from fedhead.data import partition as partitions
from fedhead.data.allocation import Rows, stratified
from fedhead.data.arrays import Samples as Samples
from fedhead.data.augment import Transform
from fedhead.data.client_test import ClientTest, Fraction, parse
from fedhead.data.partition import Partition

Pair = tuple[Any, Any] | Samples


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their data; the clients' samples are rows of one training set.

    >>> fed = Federation.from_arrays(np.zeros((6, 2)), [0, 1, 0, 1, 0, 1], partition="iid", clients=3)
    >>> len(fed), fed.input_shape, fed.counts().sum()
    (3, (2,), np.int64(6))
    """

    train: Samples
    rows: list[Rows]  # a client's training samples, rows of `train`
    classes: int
    test: Samples | None = None  # the global test set
    client_test: list[Rows] | None = None  # each client's own test samples …
    client_test_from: Literal["train", "test"] = "train"  # … and what they are rows of
    transform: Transform = field(default_factory=Transform)
    public: Samples | None = None  # unlabeled or foreign data that all parties hold
    names: Sequence[str] | None = None  # of the classes
    title: str = "your data"  # what the data and their partition are called in records
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
        if self.public is not None and _kind(self.public) != _kind(self.train):
            raise BadInput(
                f"public samples of shape {tuple(self.public.x.shape[1:])} ({self.public.x.dtype}) do not match what "
                f"client 0 and all others hold, {self.input_shape} ({self.train.x.dtype}): their models can't take both"
            )
        self.transform.check(self.input_shape)

    # -- what it holds ----------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.rows)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Training samples a client."""
        return tuple(len(rows) for rows in self.rows)

    def counts(self) -> NDArray[np.int64]:
        """Training samples by client and class, [clients, classes]."""
        y = self.train.y.numpy()
        return np.stack([np.bincount(y[rows], minlength=self.classes) for rows in self.rows]).astype(np.int64)

    # -- ways to make one -------------------------------------------------------------------------
    @classmethod
    def dirichlet(
        cls, x: Any, y: Any, clients: int, alpha: float, test: Pair | None = None, seed: int = 0, **settings: Any
    ) -> Federation:
        """Your arrays over clients that differ in their classes: the smaller alpha, the more."""
        return cls.from_arrays(x, y, partitions.Dirichlet(alpha), clients, test, seed, **settings)

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        partition: str | Partition = "iid",
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
        """Your arrays or tensors, dealt out to clients by a partition.

        Images are uint8, [N, H, W], [N, H, W, C] or [N, C, H, W]; anything else becomes float32 features. Labels are
        class numbers or words. `client_test`: a share of each client's samples (0.3, "stratified(0.3)"), or "matched",
        drawn from the test set along the client's classes.
        """
        train, names = arrays.samples(x, y, names, "training")
        deal = partitions.parse(partition)
        held = None if test is None else arrays.samples(test[0], test[1], names, "test")[0]
        classes = _classes(classes, names, train, held)
        arrays.check_classes(train, classes, "training data")
        rows = deal.split(train.y.numpy(), classes, clients, seed)
        fed = cls(
            train,
            rows,
            classes,
            test=held,
            transform=_default(transform, train),
            public=None if public is None else arrays.samples(public[0], public[1], what="public")[0],
            names=names,
            title=title,
            partition=str(deal),
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
        """Data that is already split: one (x, y) a site; a site without samples is a client without samples."""
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
            raise BadInput("no site holds any sample")
        for k, own in full:
            if own.x.shape[1:] != full[0][1].x.shape[1:] or own.x.dtype != full[0][1].x.dtype:
                raise BadInput(
                    f"site {k} holds {own.x.dtype} samples of shape {tuple(own.x.shape[1:])}, site {full[0][0]} "
                    f"{full[0][1].x.dtype} of {tuple(full[0][1].x.shape[1:])}: all sites need the same"
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
        """A torch `Dataset` of (sample, label); `test` may be one too. Settings as for `from_arrays`."""
        if "test" in settings and settings["test"] is not None and not isinstance(settings["test"], tuple):
            settings["test"] = sources.torch_dataset(settings["test"])
        return cls.from_arrays(*sources.torch_dataset(dataset), **settings)

    @classmethod
    def from_huggingface(cls, dataset: Any, image: str = "image", label: str = "label", **settings: Any) -> Federation:
        """A Hugging Face `Dataset`, by its column names; `test` may be one too. Settings as for `from_arrays`."""
        if "test" in settings and settings["test"] is not None and not isinstance(settings["test"], tuple):
            settings["test"] = sources.columns(settings["test"], image, label)[:2]
        x, y, names = sources.columns(dataset, image, label)
        return cls.from_arrays(x, y, **{"names": names, **settings})

    @classmethod
    def from_npz(cls, path: str | PathLike[str], **settings: Any) -> Federation:
        """An .npz file with x and y (and, if there is a test set, x_test and y_test). Settings as for `from_arrays`."""
        x, y, test = sources.npz(Path(path))
        try:
            return cls.from_arrays(x, y, **{"test": test, "title": Path(path).stem, **settings})
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None

    @classmethod
    def from_folder(cls, path: str | PathLike[str], size: int | None = None, **settings: Any) -> Federation:
        """A folder with one folder a class, or one folder a site that holds the class folders.

        Folders named train and test (or val) at the top are the two parts of the data. `size` resizes the images to
        size × size; without it they must all have one size. Settings as for `from_arrays` or `from_sites`.
        """
        found = sources.folder(Path(path), size)
        settings = {"names": found.names, "test": found.test, "title": Path(path).name, **settings}
        if found.sites:
            return cls.from_sites([(s.x, s.y) for s in found.parts], **settings)
        return cls.from_arrays(found.parts[0].x, found.parts[0].y, **settings)

    @classmethod
    def load(
        cls,
        name: str,
        partition: str | Partition = "iid",
        clients: int = 10,
        seed: int = 0,
        data_dir: str | PathLike[str] | None = None,
        client_test: str | float | ClientTest | None = None,
        augment: str | None = None,
        normalize: str | None = None,
        samples: int | None = None,
        test_samples: int | None = None,
        download: bool = True,
        public: str | None = None,
        public_samples: int | None = None,
    ) -> Federation:
        """A data set of the registry (`fedhead ls datasets`), dealt out to clients.

        `augment` and `normalize` name others than the data set's own; `samples` and `test_samples` keep only that
        many (evenly by class, the same for a seed). `public` names the data set of which all parties hold some samples
        (KT-pFL): another one's test samples, or this one's training samples, which no client holds then. There are
        `public_samples` of them, by default 3000 of another data set and a fifth of the same.
        """
        from fedhead.data import datasets

        entry = datasets.get(name)
        train, test = entry.load(data_dir, download=download)
        if samples is not None:
            train = train.take(stratified(train.y.numpy(), samples, seed))
        if test_samples is not None:
            test = test.take(stratified(test.y.numpy(), test_samples, seed))
        shared = None
        if public == name:
            held = stratified(train.y.numpy(), public_samples or max(1, len(train.y) // 5), seed)
            shared, train = train.take(held), train.take(np.setdiff1d(np.arange(len(train.y)), held))
            if not len(train.y):
                raise BadInput(f"public_samples: {public_samples} leaves no training sample of {name} to the clients")
        elif public is not None:
            shared = datasets.get(public).part("test", data_dir, download)
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
            title=name,
        )

    # -- ways to change one -----------------------------------------------------------------------
    def with_client_test(self, client_test: str | float | ClientTest | None, seed: int = 0) -> Federation:
        """The federation with a test set of its own for each client."""
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
            raise BadInput("client_test: matched draws from the global test set, and there is none; give test=(x, y)")
        held, counts = self.test.y.numpy(), self.counts()
        local = [rule.draw(own, int(counts.sum()), held, seed, k) for k, own in enumerate(counts)]
        return replace(self, client_test=local, client_test_from="test")

    def subset(self, n: int, seed: int = 0) -> Federation:
        """The federation with only n samples to train (and locally test) on, evenly by class, clients kept."""
        kept = stratified(self.train.y.numpy(), n, seed)
        place = np.full(len(self.train.y), -1, np.int64)
        place[kept] = np.arange(len(kept))

        def moved(rows: list[Rows]) -> list[Rows]:
            return [place[own][place[own] >= 0] for own in rows]

        local = (
            moved(self.client_test)
            if self.client_test is not None and self.client_test_from == "train"
            else self.client_test
        )
        return replace(self, train=self.train.take(kept), rows=moved(self.rows), client_test=local)

    # -- the partition on disk --------------------------------------------------------------------
    def save_partition(self, path: str | PathLike[str]) -> None:
        """Write who holds which rows, to be read by `load_partition`."""
        sources.save_partition(Path(path), self.rows, self.client_test, self.client_test_from, self.partition)

    def load_partition(self, path: str | PathLike[str]) -> Federation:
        """This data with the clients that a file from `save_partition` says."""
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


def _kind(data: Samples) -> tuple[torch.Size, torch.dtype]:
    return data.x.shape[1:], data.x.dtype


def _default(transform: Transform | None, data: Samples) -> Transform:
    """Without a word from the user: images to -1 … 1, features as they are."""
    if transform is not None:
        return transform
    return Transform.named(normalize="half") if data.x.dtype == torch.uint8 else Transform()
