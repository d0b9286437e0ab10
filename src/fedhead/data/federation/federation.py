"""Federations: clients and their data, with constructors for many sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedhead.core.components.parameters import known_arguments
from fedhead.core.system.errors import BadInput, require, unknown
from fedhead.data.federation import builders, federation_file, preprocessing
from fedhead.data.federation.builders import ArrayOptions
from fedhead.data.federation.federation_data import FederationData
from fedhead.data.inputs.arrays import Samples as Samples
from fedhead.data.inputs.arrays import to_mask
from fedhead.data.inputs.conversion import Pair, concatenate
from fedhead.data.inputs.named_inputs import LayoutLike
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.data.inputs.tokenize import Tokenizer
from fedhead.data.partitions import partition_file
from fedhead.data.partitions.client_test_sets import ClientTest
from fedhead.data.partitions.groups import DEFAULT, indices_of_groups, test_indices_of_groups
from fedhead.data.partitions.partition import Natural
from fedhead.data.partitions.partition_registry import PartitionLike
from fedhead.data.partitions.partition_registry import parse as parse_partition
from fedhead.data.sources import datasets, library_datasets
from fedhead.data.sources.datasets import Dataset
from fedhead.data.sources.library_datasets import Reader
from fedhead.data.sources.sample_file import SAVED, Contents, read_path
from fedhead.data.transforms.named_transforms import AnyTransform

_PREPARATION = ("client_test", "augment", "normalize", "resize")  # arguments that may override those of a saved file


class Federation(FederationData):
    """Clients and their data; a client's samples are indices into one training set.

    Federations of the same data set share its tensors; clone before modifying.

    Attributes:
        train: Training samples of all clients.
        indices: Training samples of each client, as indices into `train`.
        classes: Number of classes, of labels (multilabel) or of numbers to predict (regression).
        test: Global test set.
        client_test: Test samples of each client, as indices into `train` or `test`.
        client_test_from: Set that `client_test` refers to: "train" or "test".
        validation: Validation samples of each client, as indices into `train` that are not among `indices`.
        transform: Maps stored samples to model inputs.
        public: Public samples that the server and all clients have (KT-pFL).
        class_names: Names of the classes.
        client_names: Names of the clients.
        title: Name of the data in records.
        partition: Name of the partition in records.
        objective: Objective of the labels: "multiclass", "binary", "multilabel" or "regression".
        missing: Fill values of each table's missing values, keyed by the input's name ("" for a single input).
        columns: Columns of a table and their encoding, if they have names.
        fitted: Normalization that was fitted to the training samples: "standard" or "quantiles".

    Raises:
        BadInput: If the fields are inconsistent.

    >>> fed = Federation.from_arrays(np.zeros((6, 2)), [0, 1, 0, 1, 0, 1], partition="iid", clients=3)
    >>> len(fed), fed.input_shape, fed.counts().sum()
    (3, (2,), np.int64(6))
    """

    # -- constructors -----------------------------------------------------------------------------
    @classmethod
    @known_arguments
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
        class_names: Sequence[str] | None = None,
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
            x: Samples, [N, …]; a dictionary of arrays for models with several inputs; or a list of samples of different
                lengths, which become the inputs x and mask.
            y: Labels, [N]: numbers or words. Class indices 0, 1, 2 … are kept. Other labels are sorted and numbered,
                and become the names of the classes.
            partition: A partition or its name, such as "dirichlet(0.1)", or a function `(y, clients, rng)` that
                returns one array of indices per client; by default iid, or the groups.
            clients: Number of clients; by default 10, or the number of groups.
            test: Global test set (x, y), or the share of the samples to hold out for it, or a mask of these samples,
                booleans [N]. With groups, the held-out samples of a client are also its own test set.
            seed: Seed of the partition.
            client_test: Test set of each client: a share of its samples (0.3, "stratified(0.3)"), or "matched", drawn
                from the test set with the client's class distribution.
            transform: Maps stored samples to model inputs; by default images are scaled to -1 … 1.
            classes: Number of classes, if y holds class indices and some may be absent; None: inferred from the data.
            class_names: Names of the classes, in order.
            public: Public samples (x, y) that the server and all clients have.
            title: Name of the data in records.
            layout: Meaning of x: "nhw", "nhwc" or "nchw" images (N samples, Height, Width, Channels), "features", which
                become float32, or "tokens", which stay integers; a dictionary for named inputs. By default it is
                inferred, and an ambiguous x is refused.
            groups: Client of each sample, [N], numbers or words, for data with natural clients.
            group_names: Names of the groups, if these are numbers 0, 1, 2 ….
            test_groups: Client of each sample of a test set (x, y). A client's samples become its own test set.
            missing: Treatment of NaN in tables: "refuse" it, or "mean": replace it by the feature's mean over all
                clients and add an indicator column for each feature with NaN.
            augment: Augmentation that overrides the transform's, such as "flip".
            normalize: Normalization that overrides the transform's: a name, or "standard", by mean and deviation of
                each feature or channel over all clients, or "quantiles", by which the 5 % and 95 % quantiles of each
                number of a table with a schema become -1 and 1.
            resize: Height and width to which images are resized on the compute device (bicubic), such as for a
                pretrained model; by default they keep their size.
            objective: Objective of y: "multiclass", "binary" (2 classes, a model with one logit), "multilabel" (0 or 1
                for each label, [N, L]) or "regression" (numbers, [N] or [N, T]).

        Returns:
            The federation.

        Raises:
            BadInput: If the data is inconsistent, ambiguous, or can't be partitioned.
        """
        options = ArrayOptions(
            transform, classes, class_names, public, title, layout, missing, augment, normalize, resize, objective
        )
        pair, share = builders.pair_or_share(test)
        converted = options.convert({"training": (x, y)}, pair)
        train, test_samples, client_names = converted.parts[0], converted.test, None
        if isinstance(share, np.ndarray):
            require(
                share.shape == (len(train.y),),
                f"test has shape {share.shape}, there are {len(train.y)} samples: give one boolean per sample",
            )
        rule = Natural() if partition is None and groups is not None else parse_partition(partition or "iid")
        if isinstance(rule, Natural):
            indices, client_names = indices_of_groups(groups, group_names, len(train.y), clients)
        else:
            require(groups is None, f"groups: they decide the clients, leave partition={rule} out (or groups)")
            if share is not None:
                train, test_samples = builders.split_test(train, share, objective)
            indices = builders.partition_indices(train, rule, converted.classes.count, clients, objective, seed)
            share = None
        parts: dict[str, Any] = {"test": test_samples, "client_names": client_names, "partition": str(rule)}
        if test_groups is not None:
            if client_names is None or pair is None or test_samples is None:
                raise BadInput("test_groups: these are for a test set (x, y) of clients that groups name")
            own_test = test_indices_of_groups(test_groups, group_names, len(test_samples.y), client_names)
            parts |= {"client_test": own_test, "client_test_from": "test"}
        return options.build(cls, converted, train, indices, share, client_test, seed, **parts)

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
            dataset: A torch `Dataset` of (sample, label) pairs or of dictionaries, a Hugging Face
                `Dataset`, a pandas `DataFrame`, or a `DatasetDict` (or dictionary) of these with the parts train and,
                optionally, test.
            partition: A partition or its name, see `from_arrays`; "natural(column)" reads each sample's client from a
                column. If the test set has this column too, each client gets its own test samples.
            clients: Number of clients; by default 10, or the number of clients in the column.
            test: Test set, see `from_arrays`, or a data set, or the name of a part of a `DatasetDict`, or the name of
                a column that is 1 for test samples.
            inputs: Column of the samples, or several columns for models with several inputs. By default all columns of
                a data frame or dictionary except label and client, or the only column of a Hugging Face data set.
            label: Column of the labels.
            encode: Encoding of texts: a tokenizer, which is any function from a text to its token ids, or an
                encoder's name, such as "hashing(2048)". Texts of different lengths are padded, with a mask.
            categories: All categories of some columns of a data frame, if the data may not contain all of them; see
                `TableColumns`.
            layout: Meaning of the inputs, see `from_arrays`.
            **settings: Further arguments of `from_arrays`.

        Returns:
            The federation.

        Raises:
            BadInput: If a column is missing, or the data can't be read or partitioned.
        """
        train, test_data = library_datasets.split(dataset, "the data")
        mark = None
        if isinstance(test, str) and isinstance(dataset, Mapping):
            require(test in dataset, f"test: the data has no part {test!r}; it has {', '.join(map(str, dataset))}")
            test_data = dataset[test]
        elif isinstance(test, str):
            mark = test
        elif test is not None:
            test_data = test
        rule = None if partition is None else parse_partition(partition)
        column = rule.column if isinstance(rule, Natural) and "groups" not in settings else None
        missing = preprocessing.allows_missing(settings.get("missing", "refuse"))
        reader = Reader([train], inputs, label, encode, categories, missing, column, mark)
        part = reader.read(train, "the data")
        given: dict[str, Any] = {"class_names": part.names, "layout": builders.merge_layouts(layout, part.layout)}
        if part.groups is not None:
            given |= {"groups": part.groups, "group_names": part.group_names}
        if mark is not None:
            require(part.mark is not None, f"test: {mark!r} names a column or a part, a torch Dataset has none")
            test_data = to_mask(part.mark, f"column {mark!r}")
        if test_data is not None and not isinstance(test_data, int | float | tuple | np.ndarray):
            test_part = reader.read(test_data, "the test data", is_test=True)
            test_data = (test_part.x, test_part.y)
            if test_part.groups is not None:
                given["test_groups"] = test_part.groups
        normalize = settings.pop("normalize", None)  # after the columns are known
        federation = cls.from_arrays(part.x, part.y, rule, clients, test_data, **{**given, **settings})
        return preprocessing.prepare(replace(federation, columns=reader.table), "refuse", None, normalize)

    @classmethod
    def from_clients(
        cls,
        clients: Iterable[Any] | Mapping[str, Any],
        test: Pair | float | None = None,
        seed: int = 0,
        client_test: str | float | ClientTest | None = None,
        *,
        inputs: str | Sequence[str] | None = None,
        label: str = "label",
        encode: str | Tokenizer | None = None,
        categories: Mapping[str, Sequence[Any]] | None = None,
        schema: TableSchema | str | PathLike[str] | None = None,
        leave_out: Sequence[str] = (),
        **settings: Any,
    ) -> Self:
        """Create a federation from data that is already split.

        Args:
            clients: The data of each client, by name or in a list: a pair (x, y), which may be empty, or a data set,
                see `from_dataset`. A client with its own test set has (x, y, x_test, y_test), or a dictionary of the
                data sets train and test, such as a `DatasetDict`. All clients' test sets form the global test set.
            test: Global test set (x, y), or the share of each client's samples to hold out for it; this share is also
                the client's own test set.
            seed: Seed of the clients' test sets.
            client_test: Test set of each client, see `from_arrays`.
            inputs: Columns of data sets that are inputs, see `from_dataset`.
            label: Column of the labels.
            encode: Tokenizer or encoder of texts, see `from_dataset`.
            categories: Categories of columns of data frames; by default all categories that occur at any client.
            schema: Schema of tables, or its YAML file: it names the label, the inputs and their categories. A client's
                data is then a data frame, the path of a CSV or Parquet file, or a list of paths.
            leave_out: Columns of these tables that are not used.
            **settings: Further arguments of `from_arrays`: transform, classes, class_names, public, title, layout,
                missing, augment, normalize, resize and objective.

        Returns:
            The federation.

        Raises:
            BadInput: If the clients' data is empty or inconsistent.
        """
        if not isinstance(clients, Iterable):
            raise BadInput(f"clients is {type(clients).__name__}: give a list or dictionary of the clients' data")
        named = dict(clients) if isinstance(clients, Mapping) else dict(enumerate(clients))
        if len(set(map(str, named))) < len(named):
            raise BadInput(f"clients: two have the same name, {', '.join(map(repr, named))}; give each its own")
        options = ArrayOptions(**settings)
        missing = preprocessing.allows_missing(options.missing)
        if schema is not None:
            usual = (inputs, label, encode, categories) == (None, "label", None, None)
            require(usual, "schema: it names the label, the inputs and their categories; leave these arguments out")
            schema = schema if isinstance(schema, TableSchema) else TableSchema.read(schema)
            read = partial(schema.tables, objective=options.objective, leave_out=leave_out)
            split = {f"client {name}": read(source) for name, source in named.items()}
            reader = Reader([], label=schema.label, missing=missing)
            reader.table = schema.encoding([schema.categories(train) for train, _ in split.values()], missing)
            options = replace(options, class_names=options.class_names or schema.classes)
        else:
            require(not leave_out, "leave_out: it is for tables with a schema; select columns with inputs")
            split = {f"client {name}": library_datasets.split(data, f"client {name}") for name, data in named.items()}
            reader = Reader([train for train, _ in split.values()], inputs, label, encode, categories, missing)
        parts = {name: reader.read(train, name) for name, (train, _) in split.items()}
        tests = {name: reader.read(part, f"{name}, test") for name, (_, part) in split.items() if part is not None}
        if tests and (test is not None or client_test is not None):
            raise BadInput("test and client_test: these clients have their own test sets, leave both out")
        pair, share = builders.pair_or_share(test)
        known = next((part.layout for part in parts.values() if part.layout is not None), None)
        class_names = next((part.names for part in parts.values() if part.names is not None), None)
        options = replace(
            options,
            class_names=options.class_names or class_names,
            layout=builders.merge_layouts(options.layout, known),
        )
        converted = options.convert(
            {name: (part.x, part.y) for name, part in parts.items()},
            {f"{name}, test": (part.x, part.y) for name, part in tests.items() if len(part.y)} or pair,
        )
        train, indices = (
            concatenate(converted.parts),
            builders.consecutive_indices([len(part.y) for part in parts.values()]),
        )
        fields: dict[str, Any] = {"test": converted.test, "columns": reader.table}
        if isinstance(clients, Mapping):
            fields["client_names"] = tuple(named)
        if tests:
            own_test = builders.consecutive_indices([len(tests[name].y) if name in tests else 0 for name in parts])
            fields |= {"client_test": own_test, "client_test_from": "test"}
        return options.build(cls, converted, train, indices, share, client_test, seed, **fields)

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
        subset: int | None = None,
        download: bool = True,
        public: str | Dataset | Callable[[], Any] | None = None,
        public_samples: int | None = None,
        resize: int | None = None,
        with_test: bool = True,
        **settings: Any,
    ) -> Self:
        """Load a registered data set (`fedhead ls datasets`), an .npz file or a folder of images.

        docs/data_files.md lists the arrays of a file. A folder contains one folder per class, or one folder per client
        with class folders inside. Top-level folders named train and test (or val) are the two parts of the data.

        Args:
            source: Name of the data set, a function that returns `(x, y, x_test, y_test)`, a `Dataset`, or a path.
            partition: A partition or its name, such as "dirichlet(0.1)", or a function `(y, clients, rng)` that
                returns one array of indices per client. By default the clients are those of the file (its array `site`)
                or folder, if any, otherwise iid. "natural(column)" reads the clients from another array.
            clients: Number of clients; by default that of the file or folder, or 10.
            seed: Seed of the partition and of subsets.
            data_dir: Data folder; by default $FEDHEAD_DATA or the user's cache.
            client_test: Test set of each client, see `from_arrays`.
            augment: Augmentation; by default that of the data set.
            normalize: Normalization; by default that of the data set; see `from_arrays`.
            subset: Number of training samples to keep, stratified by class.
            download: Whether downloads are allowed.
            public: Data set of the public samples, which the server and all clients have (KT-pFL): test samples of
                another data set, or training samples of the same one, which are then removed from the clients.
            public_samples: Number of public samples; by default 3000, or a fifth of the training samples if they are
                from the same data set.
            resize: Height and width to which images are resized on the compute device (bicubic); by default they keep
                their size.
            with_test: Whether to read the test samples. If false, the federation has no test set.
            **settings: For files and folders only: `size` (resizes encoded images to size × size), `encode` (encoder
                of texts, such as "hashing(2048)", "bytes(256)" or a tokenizer, see `from_dataset`, or of sounds,
                "spectrogram(1.0)" or "waveform(1.0)"), `layout`, `test` (see `from_arrays`, or the name of an array
                that is 1 for test samples; by default x_test and y_test, if the file has them), and further
                arguments of `from_arrays`. `objective` is allowed for registered data sets too.

        Returns:
            The federation.

        Raises:
            BadInput: If a name is unknown, or the data can't be found or read.
        """
        known = [*signature(cls.load).parameters, *signature(cls.from_arrays).parameters, "size", "encode"]
        for name in settings:
            if name not in known:
                raise unknown("argument of load", name, known, "help(fedhead.Federation.load)")
        if public is None and public_samples is not None:
            raise BadInput(f"public_samples: {public_samples} would have no effect without public: name a data set")
        if isinstance(source, PathLike) or datasets.is_path(source):
            require(public is None, "public: this is for registered data sets; give from_arrays public=(x, y)")
            contents = read_path(Path(str(source)), *(settings.get(name) for name in ("size", "encode", "layout")))
        else:
            other = ", ".join(name for name in settings if name != "objective")
            require(not other, f"{other}: this is for files and folders, {source} is a registered data set")
            entry, objective = datasets.get(source), settings.get("objective", "multiclass")
            contents = datasets.read(
                entry, objective, seed, data_dir, download, with_test, subset, public, public_samples
            )
            subset = None  # the subset was already taken
        settings = {name: value for name, value in settings.items() if name not in ("size", "encode")}
        settings |= {"client_test": client_test, "augment": augment, "normalize": normalize, "resize": resize}
        try:
            federation = cls._of_contents(contents, partition, clients, seed, **settings)
        except BadInput as error:
            raise BadInput(f"{contents.where}: {str(error).removeprefix(f'{contents.where}: ')}") from None
        if not with_test:
            federation = replace(federation, test=None, client_test=None)
        return federation if subset is None else federation.subset(subset, seed)

    @classmethod
    def _of_contents(
        cls,
        contents: Contents,
        partition: PartitionLike | None,
        clients: int | None,
        seed: int,
        test: Pair | float | str | NDArray[np.bool_] | None = None,
        layout: str | None = None,
        **settings: Any,
    ) -> Self:
        default = Natural() if "site" in contents.arrays else "iid"
        rule = parse_partition(default if partition is None else partition)
        changed = {name: value for name, value in settings.items() if name not in _PREPARATION}
        unchanged = changed in ({}, {"objective": contents.objective}) and test is None and layout is None
        if SAVED in contents.arrays and rule == Natural() and unchanged:
            fed = cls(**federation_file.restore(contents))
            count = len(fed)
            if clients not in (None, count):
                raise BadInput(f"clients: the file has {count}, not {clients}; set clients={count} ({DEFAULT})")
            transform = (settings["augment"], settings["normalize"], settings["resize"])
            return preprocessing.prepare(fed.with_client_test(settings["client_test"], seed), "refuse", *transform)
        if isinstance(rule, Natural):
            groups, group_names = contents.column(rule.column)
            require(groups is not None, f"partition {rule}: no array {rule.column!r} names each sample's client")
            settings |= {"groups": groups, "group_names": group_names}
        chosen = contents.mask(test) if isinstance(test, str) else contents.test if test is None else test
        given: dict[str, Any] = {
            "class_names": contents.class_names,
            "title": contents.title,
            "classes": contents.classes,
        }
        given |= {"objective": contents.objective, "layout": layout or contents.layout, "transform": contents.transform}
        normalize = settings.pop("normalize")  # after the columns are known
        fed = cls.from_arrays(contents.x, contents.y, rule, clients, chosen, seed, **{**given, **settings})
        fed = replace(fed, public=contents.public or fed.public, columns=contents.columns)
        return preprocessing.prepare(fed, "refuse", None, normalize)

    def leave_out(self, client: int) -> Self:
        """Return the federation of the other clients, with all samples of one client as the global test set.

        Means and deviations over all clients (`normalize="standard"`, `missing="mean"`) are recomputed without that
        client.

        Args:
            client: Number of the client.

        Returns:
            Federation without the client and without client test sets.

        Raises:
            BadInput: If the client does not exist or has no samples, or no other client has samples.
        """
        require(0 <= client < len(self), f"there is no client {client} to leave out: they are 0 … {len(self) - 1}")
        others = [k for k in range(len(self)) if k != client]
        if not any(self.sizes[k] for k in others):
            raise BadInput(f"client {client} can't be left out: no other client has samples to train on")
        test = self.samples_of(client)
        require(len(test.y), f"client {client} can't be left out for a test: it has no samples")
        validation, names = self.validation, self.client_names
        rest = replace(
            self,
            indices=[self.indices[k] for k in others],
            test=test,
            client_test=None,
            validation=None if validation is None else [validation[k] for k in others],
            client_names=None if names is None else [names[k] for k in others],
        )
        kept = np.sort(np.concatenate([*rest.indices, *(rest.validation or [])]))
        return preprocessing.refit(rest.take(kept))

    # -- files ------------------------------------------------------------------------------------
    def save(self, path: str | PathLike[str]) -> None:
        """Write the federation to an .npz file that `load` reads.

        Args:
            path: File to write, with the suffix .npz.

        Raises:
            BadInput: If the suffix is different, or the folder does not exist.
        """
        require(Path(path).suffix == ".npz", f"{path}: a federation is an .npz file; give a name that ends in .npz")
        require(Path(path).absolute().parent.is_dir(), f"{path}: there is no such folder; make it first")
        federation_file.save(Path(path), self)

    def fingerprint(self) -> str:
        """Return a hash of 16 characters of the clients' training and test indices."""
        return partition_file.fingerprint(self.indices, self.client_test, self.client_test_from)

    def save_partition(self, path: str | PathLike[str], **arrays: NDArray[Any]) -> None:
        """Write the indices of each client's samples to a file, with their counts per class.

        Args:
            path: File to write.
            **arrays: Further named arrays to write.
        """
        entries: dict[str, Any] = {"partition": self.partition, "client_test_from": self.client_test_from}
        entries |= partition_file.pack(self.indices, "indices", "ends")
        if self.client_test is not None:
            entries |= partition_file.pack(self.client_test, "local", "local_ends")
        entries |= {
            "class_names": self.class_names,
            "client_names": self.client_names,
            "counts": self.counts(),
            **arrays,
        }
        partition_file.write(Path(path), entries)
