"""Registry of data sets, with their description, download and reader.

A user's own data set is a function without arguments that returns `(x, y, x_test, y_test)`, or a `Dataset`. The
function's optional attribute `layout` gives the meaning of x's axes, as in `Federation.from_arrays`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedhead.core.components.component_check import check_function, first_docline
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput, require, user_code
from fedhead.core.tree.inputs import shape_of
from fedhead.data.inputs import targets
from fedhead.data.inputs.arrays import Samples, stored_layout
from fedhead.data.inputs.conversion import convert
from fedhead.data.partitions.allocation import stratified
from fedhead.data.sources import dataset_cache
from fedhead.data.sources.sample_file import Contents
from fedhead.data.transforms.named_transforms import AnyTransform, default_transform

Part = Literal["train", "test"]


@dataclass(frozen=True)
class Dataset:
    """Registered data set, a line of `fedhead ls datasets`.

    Args:
        name: Name of the data set.
        classes: Number of classes.
        shape: Shape of one sample; of images: channels, height, width.
        transform: Augmentation and normalization.
        description: Description in one line.
        source: Source of its files.
        read: Function (data folder, part, whether to download) that reads a part.
        names: Names of the classes.
        sizes: Numbers of training and test samples, if they are fixed.
    """

    name: str
    classes: int
    shape: Any
    transform: AnyTransform
    description: str
    source: str
    read: Callable[[Path, Part, bool], Samples]
    names: tuple[str, ...] | None = None
    sizes: tuple[int, int] | None = None

    def load(self, data_dir: str | PathLike[str] | None = None, download: bool = True) -> tuple[Samples, Samples]:
        """Return the training and the test samples.

        Args:
            data_dir: Folder of the data sets; None: $FEDHEAD_DATA, else ~/.cache/fedhead.
            download: Whether to download files that are missing.

        Returns:
            Training and test samples.

        Raises:
            BadInput: If files are missing or of another shape or size.
        """
        return self.part("train", data_dir, download), self.part("test", data_dir, download)

    def part(self, part: Part, data_dir: str | PathLike[str] | None = None, download: bool = True) -> Samples:
        """Return one part of the data set, after checking its shape and size.

        Args:
            part: "train" or "test".
            data_dir: Folder of the data sets; None: $FEDHEAD_DATA, else ~/.cache/fedhead.
            download: Whether to download files that are missing.

        Returns:
            The samples.

        Raises:
            BadInput: If files are missing or of another shape or size.
        """
        root = folder(data_dir)
        data: Samples = dataset_cache.read((self.name, root, part), lambda: self.read(root, part, download))
        count = len(data.y)
        expected = count if self.sizes is None else self.sizes[part == "test"]
        if count != expected:
            raise BadInput(f"{self.name}: {count} {part} samples under {root}, {expected} expected: files are missing")
        shape = shape_of(data.x)
        require(shape == self.shape, f"{self.name}: samples under {root} have shape {shape}, not {self.shape}")
        return data


def folder(data_dir: str | PathLike[str] | None = None) -> Path:
    """Return the folder of the data sets: the given one, $FEDHEAD_DATA, or ~/.cache/fedhead."""
    return Path(data_dir or os.environ.get("FEDHEAD_DATA") or Path.home() / ".cache" / "fedhead").expanduser()


def get(name: str | Dataset | Callable[[], Any], folders: Iterable[str | Path] = ()) -> Dataset:
    """Return a data set from its name, a function that returns `(x, y, x_test, y_test)`, or a `Dataset`."""
    return DATASETS.resolve(name, folders)


def is_path(name: Any) -> bool:
    """Return whether a data set's name is a path to user data: an .npz or .csv file, or any existing path."""
    if isinstance(name, PathLike):
        return True
    return isinstance(name, str) and name not in DATASETS and (name.endswith((".npz", ".csv")) or Path(name).exists())


def read(
    entry: Dataset,
    objective: str = "multiclass",
    seed: int = 0,
    data_dir: str | PathLike[str] | None = None,
    download: bool = True,
    with_test: bool = True,
    subset: int | None = None,
    public: str | Dataset | Callable[[], Any] | None = None,
    public_samples: int | None = None,
) -> Contents:
    """Read the requested parts of a registered data set; `Federation.load` describes the arguments."""
    check_objective(entry, objective)
    train = entry.part("train", data_dir, download)
    test = entry.part("test", data_dir, download) if with_test else None
    if subset is not None:
        train = train.take(stratified(train.y.numpy(), subset, seed))
    shared = None
    if public is not None and (other := get(public)).name != entry.name:
        shared = other.part("test", data_dir, download)
        shared = shared.take(stratified(shared.y.numpy(), min(public_samples or 3000, len(shared.y)), seed))
    elif public is not None:  # public samples of the same data set are removed from its training samples
        public_indices = stratified(train.y.numpy(), public_samples or max(1, len(train.y) // 5), seed)
        if len(public_indices) == len(train.y):
            raise BadInput(f"public_samples: {public_samples} leaves no training samples of {entry.name}: take fewer")
        train, shared = train.take(np.setdiff1d(np.arange(len(train.y)), public_indices)), train.take(public_indices)
    named = {} if entry.names is None else {"class_names": np.array(entry.names)}
    layout, classes = stored_layout(train.x), entry.classes
    return Contents(entry.name, entry.name, *train, layout, test, named, classes, entry.transform, shared)


def _checked(component: Any, name: str) -> Dataset:
    if isinstance(component, Dataset):
        return component
    return _from_function(check_function(component, name, "data set", [], "(x, y, x_test, y_test)"), name)


@lru_cache(maxsize=4)
def _from_function(function: Callable[[], Any], name: str) -> Dataset:
    """Return the data set of a user's function, which is called once."""
    with user_code(f"dataset {name}"):
        arrays = function()
    if not isinstance(arrays, tuple) or len(arrays) != 4:
        raise BadInput(f"dataset {name}: the function must return (x, y, x_test, y_test)")
    try:
        converted = convert({"training": arrays[:2]}, test=arrays[2:], layout=getattr(function, "layout", None))
    except BadInput as error:
        raise BadInput(f"dataset {name}: {error}") from None
    train, test = converted.parts[0], converted.test
    assert test is not None
    shape = shape_of(train.x)
    return Dataset(
        name,
        converted.classes.count,
        shape,
        default_transform(train.x),
        first_docline(function),
        name,
        lambda root, part, download: test if part == "test" else train,
        converted.classes.names,
    )


DATASETS = Registry[Dataset]("dataset", "fedhead.datasets", _checked, home=["fedhead.data.sources.standard_datasets"])
"""The data sets by name."""
dataset = DATASETS.decorator
"""Register a data set under a name: a decorator of functions that return `(x, y, x_test, y_test)`."""


def check_objective(entry: Dataset, objective: str) -> None:
    """Check that an objective supports registered data sets, whose labels are classes."""
    require(
        targets.objective_of(objective).has_classes,
        f"objective={objective}: {entry.name} is a data set of classes; give your own data as an .npz file, or in "
        "Python by Federation.from_arrays",
    )
    if objective == "binary" and entry.classes != 2:
        raise BadInput(f"objective=binary is for 2 classes, {entry.name} has {entry.classes}: use objective=multiclass")
