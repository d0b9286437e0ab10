"""The registry of data sets: what each is, where its standard files come from, and how they are read.

A user's own data set is a function without arguments that returns `(x, y, x_test, y_test)`, or a `Dataset`. The
function's attribute `layout`, if it has one, states what the axes of x mean, as in `Federation.from_arrays`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fedhead.core.components.component_check import check_function, first_docline
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput, require, user_code
from fedhead.core.tree.inputs import shape_of
from fedhead.data.inputs import targets
from fedhead.data.inputs.arrays import Samples, inputs
from fedhead.data.inputs.conversion import convert
from fedhead.data.partitions.allocation import stratified
from fedhead.data.sources import dataset_cache, readers
from fedhead.data.sources.digits import load_digits
from fedhead.data.sources.readers import Part
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import AnyTransform, default_transform

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_DIGITS = tuple("0123456789")
_LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True)
class Dataset:
    """A data set of the registry, a line of `fedhead ls datasets`.

    Args:
        name: Its name.
        classes: Number of classes.
        shape: Shape of one sample; of images: channels, height, width.
        transform: Augmentation and normalization.
        description: One line about it.
        source: Where its files come from.
        read: Reads a part: (data folder, part, whether to download).
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
        data = dataset_cache.read((self.name, root, part), lambda: self.read(root, part, download))
        if self.sizes is not None and len(data.y) != self.sizes[part == "test"]:
            expected = self.sizes[part == "test"]
            raise BadInput(
                f"{self.name}: {len(data.y)} {part} samples under {root}, {expected} expected: files are missing"
            )
        require(
            shape_of(data.x) == self.shape,
            f"{self.name}: samples under {root} have shape {shape_of(data.x)}, not {self.shape}",
        )
        return data


def folder(data_dir: str | PathLike[str] | None = None) -> Path:
    """The folder of the data sets: as given, else $FEDHEAD_DATA, else ~/.cache/fedhead."""
    return Path(data_dir or os.environ.get("FEDHEAD_DATA") or Path.home() / ".cache" / "fedhead").expanduser()


def get(name: str | Dataset | Callable[[], Any], folders: Iterable[str | Path] = ()) -> Dataset:
    """Return the data set of a name, a function that returns `(x, y, x_test, y_test)`, or the one given."""
    return DATASETS.resolve(name, folders)


def is_path(name: Any) -> bool:
    """Whether a data set's name is a path to the user's own data: an .npz file, or whatever is there."""
    if isinstance(name, PathLike):
        return True
    return isinstance(name, str) and name not in DATASETS and (name.endswith(".npz") or Path(name).exists())


def dataset(name: str) -> Callable[[C], C]:
    """Register a data set under a name.

    Args:
        name: The name, for recipes and the command line.

    Returns:
        A decorator of functions that return `(x, y, x_test, y_test)`.
    """
    return DATASETS.decorator(name)


def parts(
    entry: Dataset,
    data_dir: str | PathLike[str] | None,
    download: bool,
    samples: int | None,
    test_samples: int | None,
    public: Dataset | None,
    public_samples: int | None,
    seed: int,
    with_test: bool = True,
) -> tuple[Samples, Samples | None, Samples | None]:
    """Return the training, test and public samples that `Federation.load` asks for."""
    train = entry.part("train", data_dir, download)
    test = entry.part("test", data_dir, download) if with_test else None
    if samples is not None:
        train = train.take(stratified(train.y.numpy(), samples, seed))
    if test_samples is not None and test is not None:
        test = test.take(stratified(test.y.numpy(), test_samples, seed))
    if public is None:
        return train, test, None
    if public.name != entry.name:
        shared = public.part("test", data_dir, download)
        return train, test, shared.take(stratified(shared.y.numpy(), min(public_samples or 3000, len(shared.y)), seed))
    held = stratified(train.y.numpy(), public_samples or max(1, len(train.y) // 5), seed)
    require(
        len(held) != len(train.y),
        f"public_samples: {public_samples} leaves no training samples of {entry.name} for the clients",
    )
    return train.take(np.setdiff1d(np.arange(len(train.y)), held)), test, train.take(held)


def _checked(found: Any, name: str) -> Dataset:
    if isinstance(found, Dataset):
        return found
    return _from_function(check_function(found, name, "data set", [], "(x, y, x_test, y_test)"), name)


@lru_cache(maxsize=4)
def _from_function(function: Callable[[], Any], name: str) -> Dataset:
    """Return the data set of a user's function, which is called once."""
    with user_code(f"dataset {name}"):
        made = function()
    require(
        isinstance(made, tuple) and len(made) == 4, f"dataset {name}: the function must return (x, y, x_test, y_test)"
    )
    try:
        found = convert({"training": made[:2]}, test=made[2:], layout=getattr(function, "layout", None))
    except BadInput as error:
        raise BadInput(f"dataset {name}: {error}") from None
    train, test = found.parts[0], found.test
    assert test is not None
    shape = shape_of(train.x)
    return Dataset(
        name,
        found.classes.count,
        shape,
        default_transform(train.x),
        first_docline(function),
        name,
        lambda root, part, download: test if part == "test" else train,
        found.classes.names,
    )


C = TypeVar("C")
DATASETS = Registry[Dataset]("dataset", "fedhead.datasets", _checked)
"""The data sets by name."""


def _digits(root: Path, part: Part, download: bool) -> Samples:
    """scikit-learn's digits, levels 0 … 16 stretched to bytes; a fixed fifth of every class is for testing."""
    x, y = load_digits()
    everything = Samples(
        inputs(np.rint(x.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), "nhw"), torch.from_numpy(y.astype(np.int64))
    )
    test = stratified(y, 360, seed=0)
    return everything.take(test if part == "test" else np.setdiff1d(np.arange(len(y)), test))


for _dataset in (
    Dataset(
        "digits",
        10,
        (1, 8, 8),
        Transform((0.3053,), (0.376,)),
        "1,797 handwritten digits, 8x8, inside scikit-learn: needs no file",
        "https://scikit-learn.org/stable/datasets/toy_dataset.html",
        _digits,
        _DIGITS,
        (1437, 360),
    ),
    Dataset(
        "cifar10",
        10,
        (3, 32, 32),
        Transform.named("cifar", "cifar10"),
        "60,000 color photographs of 10 kinds of things, 32x32",
        readers.CIFAR10.url,
        readers.cifar10,
        _CIFAR10,
        (50_000, 10_000),
    ),
    Dataset(
        "cifar100",
        100,
        (3, 32, 32),
        Transform.named("cifar100", "cifar100"),
        "60,000 color photographs of 100 kinds of things, 32x32",
        readers.CIFAR100.url,
        readers.cifar100,
        None,
        (50_000, 10_000),
    ),
    Dataset(
        "cinic10",
        10,
        (3, 32, 32),
        Transform.named("cifar", "cinic10"),
        "CIFAR-10's classes with ImageNet's photographs added, 32x32: 90,000 to train on, 90,000 to test on",
        readers.CINIC10.url,
        readers.cinic10,
        _CIFAR10,
        (90_000, 90_000),
    ),
    Dataset(
        "tinyimagenet",
        200,
        (3, 64, 64),
        Transform.named("none", "imagenet"),
        "100,000 photographs of 200 kinds of things, 64x64; its val part is for testing",
        readers.TINY.url,
        readers.tinyimagenet,
        None,
        (100_000, 10_000),
    ),
    Dataset(
        "mnist",
        10,
        (1, 28, 28),
        Transform.named("none", "half"),
        "70,000 handwritten digits, 28x28",
        readers.MNIST,
        readers.mnist,
        _DIGITS,
        (60_000, 10_000),
    ),
    Dataset(
        "fashionmnist",
        10,
        (1, 28, 28),
        Transform.named("none", "half"),
        "70,000 pictures of clothes, 28x28 (also from Debian's package dataset-fashion-mnist)",
        readers.FASHION,
        readers.fashionmnist,
        _FASHION,
        (60_000, 10_000),
    ),
    Dataset(
        "emnist-letters",
        26,
        (1, 28, 28),
        Transform.named("none", "half"),
        "145,600 handwritten letters, 28x28, set upright",
        readers.EMNIST.url,
        readers.emnist_letters,
        _LETTERS,
    ),
    Dataset(
        "emnist-letters-union",
        26,
        (1, 28, 28),
        Transform.named("none", "half"),
        f"127,648 real EMNIST letters of {readers.UNION}: NOT the official split, classes unbalanced",
        readers.EMNIST.url,
        readers.emnist_letters_union,
        _LETTERS,
    ),
):
    DATASETS.register(_dataset.name, _dataset)


def check_objective(entry: Dataset, objective: str) -> None:
    """Raise `BadInput` if a registered data set, whose labels are classes, can't be used with an objective."""
    require(
        targets.objective_of(objective).has_classes,
        f"objective={objective}: {entry.name} is a data set of classes; give your own data as an .npz file, or in "
        "Python by Federation.from_arrays",
    )
    require(
        objective != "binary" or entry.classes == 2,
        f"objective=binary is for 2 classes, {entry.name} has {entry.classes}: use objective=multiclass",
    )
