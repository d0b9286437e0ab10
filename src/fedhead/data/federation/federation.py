"""A federation, and the ways to create one: from arrays, clients, data sets, files, folders or a registered name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput
from fedhead.data.federation import federation_file, preprocessing
from fedhead.data.federation.from_arrays import CLIENTS
from fedhead.data.federation.from_datasets import FromDatasets
from fedhead.data.federation.leave_out import leave_out
from fedhead.data.inputs.arrays import Samples as Samples
from fedhead.data.inputs.conversion import Pair
from fedhead.data.inputs.labels import Classes
from fedhead.data.inputs.tokenize import Tokenizer
from fedhead.data.partitions.client_test_sets import ClientTest
from fedhead.data.partitions.groups import DEFAULT
from fedhead.data.partitions.partition import Natural
from fedhead.data.partitions.partition_registry import PartitionLike
from fedhead.data.partitions.partition_registry import parse as parse_partition
from fedhead.data.sources import datasets, sources
from fedhead.data.sources.datasets import Dataset

# what can be changed of a federation that was saved
_ON_TOP = {"seed", "client_test", "augment", "normalize", "resize"}


class Federation(FromDatasets):
    """Clients and their data; see `ClientData` for its parts.

    >>> fed = Federation.from_arrays(np.zeros((6, 2)), [0, 1, 0, 1, 0, 1], partition="iid", clients=3)
    >>> len(fed), fed.input_shape, fed.counts().sum()
    (3, (2,), np.int64(6))
    """

    @classmethod
    def from_npz(
        cls,
        path: str | PathLike[str],
        partition: PartitionLike | None = None,
        clients: int | None = None,
        test: Pair | float | str | NDArray[np.bool_] | None = None,
        *,
        size: int | None = None,
        encode: str | Tokenizer | None = None,
        layout: str | None = None,
        **settings: Any,
    ) -> Self:
        """Create a federation from an .npz file, which may say which client each sample belongs to.

        The file holds x and y, or texts, sounds or encoded images and y; see the page on data for its arrays.

        Args:
            path: The file.
            partition: A partition or its name; by default "natural" if the file has clients (the array `site`),
                otherwise "iid". "natural(column)" takes the clients of another array.
            clients: Number of clients; by default those of the file, or 10.
            test: Test set, see `from_arrays`, or the name of an array that holds 1 for test samples; by default
                x_test and y_test, if the file has them.
            size: Resizes encoded images to size × size.
            encode: Encoder of texts ("hashing(2048)", "bytes(256)", "next_character(80)", or a tokenizer, see
                `from_dataset`) or sounds ("spectrogram(1.0)", "waveform(1.0)").
            layout: Meaning of x; by default what the file states, or what can be inferred.
            **settings: Further arguments of `from_arrays`.

        Returns:
            The federation.

        Raises:
            BadInput: If the file can't be read or its parts do not go together.
        """
        held = federation_file.read(Path(path), size, encode)
        default = Natural() if "site" in held.arrays else "iid"
        rule = parse_partition(default if partition is None else partition)
        if held.saved and settings.get("objective") == held.objective:
            del settings["objective"]
        try:
            if held.saved and rule == Natural() and test is None and layout is None and settings.keys() <= _ON_TOP:
                return cls._restored(held, clients, **settings)
            if isinstance(rule, Natural):
                groups, group_names = held.column(rule.column)
                if groups is None:
                    raise BadInput(f"partition {rule}: it has no array {rule.column!r} that names each sample's client")
                settings |= {"groups": groups, "group_names": group_names}
            given = {"names": held.class_names, "title": Path(path).stem, **settings}
            given.setdefault("objective", held.objective)
            chosen = held.mask(test) if isinstance(test, str) else held.test if test is None else test
            return cls.from_arrays(held.x, held.y, rule, clients, chosen, layout=layout or held.layout, **given)
        except BadInput as error:
            raise BadInput(str(error) if str(path) in str(error) else f"{path}: {error}") from None

    @classmethod
    def _restored(
        cls,
        held: federation_file.Contents,
        clients: int | None,
        seed: int = 0,
        client_test: str | float | ClientTest | None = None,
        augment: str | None = None,
        normalize: str | None = None,
        resize: int | None = None,
    ) -> Self:
        """Return a federation that was saved, with changes on top."""
        made = cls(**federation_file.restore(held))
        if clients not in (None, len(made)):
            raise BadInput(f"clients: the file has {len(made)}, not {clients}; set clients={len(made)} ({DEFAULT})")
        return preprocessing.prepare(made.with_client_test(client_test, seed), "refuse", augment, normalize, resize)

    @classmethod
    def from_folder(cls, path: str | PathLike[str], size: int | None = None, **settings: Any) -> Self:
        """Create a federation from a folder of images.

        The folder holds one folder per class, or one folder per client that holds the class folders. Top-level folders
        named train and test (or val) are the two parts of the data.

        Args:
            path: The folder.
            size: Resizes images to size × size; without it all images must have the same size.
            **settings: Arguments of `from_arrays` or `from_clients`.

        Returns:
            The federation.
        """
        found = sources.folder(Path(path), size)
        settings = {"names": found.names, "test": found.test, "title": Path(path).name, "layout": "nchw", **settings}
        if found.clients is None:
            return cls.from_arrays(found.parts[0].x, found.parts[0].y, **settings)
        if str(rule := settings.pop("partition", None) or "natural") != "natural":
            raise BadInput(f"partition: {rule} does not fit, the folders in {path} are clients; set partition=natural")
        if (clients := settings.pop("clients", None)) not in (None, len(found.parts)):
            count = len(found.parts)
            raise BadInput(f"clients: {path} holds {count}, not {clients}; set clients={count} ({DEFAULT})")
        return cls.from_clients(dict(zip(found.clients, found.parts, strict=True)), **settings)

    @classmethod
    def load(
        cls,
        source: str | PathLike[str] | Dataset | Callable[[], Any],
        partition: PartitionLike | None = None,
        clients: int | None = None,
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
        resize: int | None = None,
        with_test: bool = True,
        **settings: Any,
    ) -> Self:
        """Load a registered data set (`fedhead ls datasets`), an .npz file or a folder of images.

        Args:
            source: Name of the data set, a function that returns `(x, y, x_test, y_test)`, a `Dataset`, or a path.
            partition: A partition or its name, such as "dirichlet(0.1)", or a function `(y, clients, rng)` that
                returns one array of rows per client; by default the clients of the file or folder, if it has such,
                otherwise iid.
            clients: Number of clients; by default those of the file or folder, or 10.
            seed: Seed of the partition and of subsets.
            data_dir: Data folder; by default $FEDHEAD_DATA or the user's cache.
            client_test: Test set of each client, see `from_arrays`.
            augment: Augmentation; by default that of the data set.
            normalize: Normalization; by default that of the data set; see `from_arrays`.
            samples: Number of training samples to keep, stratified by class.
            test_samples: Number of test samples to keep, stratified by class.
            download: Whether downloads are allowed.
            public: Data set of which all parties hold samples (KT-pFL): test samples of another data set, or training
                samples of the same one, which are then removed from the clients.
            public_samples: Their number; by default 3000 of another data set and a fifth of the same.
            resize: Height and width that images are resized to on the compute device (bicubic); by default they keep
                their size.
            with_test: Whether to read the test samples; without, the federation has no test set.
            **settings: Further arguments of `from_npz` or `from_folder`, for files and folders only; `objective` also
                for registered data sets.

        Returns:
            The federation.

        Raises:
            BadInput: If a name is unknown, or the data can't be found or read.
        """
        common = {"seed": seed, "client_test": client_test}
        common |= {"augment": augment, "normalize": normalize, "resize": resize}
        if datasets.is_path(source):
            if public is not None or test_samples is not None:
                raise BadInput(
                    "public and test_samples are for registered data sets; give public=(x, y) in from_arrays"
                )
            made = cls._from_path(Path(str(source)), partition, clients, {**common, **settings})
            if not with_test:
                made = replace(made, test=None, client_test=None)
            return made if samples is None else made.subset(samples, seed)
        objective = settings.pop("objective", "multiclass")
        if settings:
            raise BadInput(f"{next(iter(settings))}: this is for files and folders, {source} is a registered data set")
        entry = datasets.get(source)  # type: ignore[arg-type]  # no path
        datasets.check_objective(entry, objective)
        other = None if public is None else datasets.get(public)
        train, test, shared = datasets.parts(
            entry, data_dir, download, samples, test_samples, other, public_samples, seed, with_test
        )
        rule = parse_partition("iid" if partition is None else partition)
        made = cls._assembled(
            train,
            rule.split(train.y.numpy(), entry.classes, CLIENTS if clients is None else clients, seed),
            Classes(entry.classes, entry.names),
            test=test,
            public=shared,
            title=entry.name,
            partition=str(rule),
            transform=entry.transform,
            objective=objective,
        )
        return preprocessing.prepare(made.with_client_test(client_test, seed), "refuse", augment, normalize, resize)

    def leave_out(self, client: int) -> Self:
        """Return the federation of the other clients, with all samples of one client as the global test set.

        Means and deviations that came from all clients' samples (`normalize="standard"`, `missing="mean"`) are computed
        anew without that client's, which are in no part of the training data any more.

        Args:
            client: Number of the client.

        Returns:
            A federation of one client fewer, without clients' own test sets.

        Raises:
            BadInput: If there is no such client, it has no samples, or no other client has any.
        """
        return leave_out(self, client)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the federation to an .npz file, from which `load` makes the same.

        Args:
            path: The file; its name ends in .npz.

        Raises:
            BadInput: If it does not, or there is no such folder.
        """
        if Path(path).suffix != ".npz":
            raise BadInput(f"{path}: a federation is saved as an .npz file; give a name that ends in .npz")
        if not Path(path).absolute().parent.is_dir():
            raise BadInput(f"{path}: there is no such folder; make it first")
        federation_file.save(Path(path), self)

    @classmethod
    def _from_path(
        cls, path: Path, partition: PartitionLike | None, clients: int | None, settings: dict[str, Any]
    ) -> Self:
        settings = {name: value for name, value in settings.items() if value is not None}
        if path.is_dir():
            for name in ("encode", "layout"):
                if name in settings:
                    raise BadInput(f"{name}: this is for .npz files, {path} is a folder of images")
            return cls.from_folder(path, partition=partition, clients=clients, **settings)
        return cls.from_npz(path, partition, clients, **settings)
