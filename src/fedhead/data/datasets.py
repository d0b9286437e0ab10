"""The registry of data sets: what each is, where its standard files come from, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np

from fedhead.data.arrays import Samples, inputs, labels
from fedhead.data.augment import Transform
from fedhead.errors import BadInput, unknown

Part = Literal["train", "test"]
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_DIGITS = tuple("0123456789")
_LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True)
class Dataset:
    """A data set of the registry, a line of `fedhead ls datasets`."""

    name: str
    classes: int
    shape: tuple[int, int, int]  # channels, height, width
    transform: Transform
    description: str
    source: str  # where its files come from
    read: Callable[[Path, Part, bool], Samples]  # (data folder, part, whether to download)
    names: tuple[str, ...] | None = None  # of the classes
    sizes: tuple[int, int] | None = None  # samples for training and testing, where they are fixed

    def load(self, data_dir: str | PathLike[str] | None = None, download: bool = True) -> tuple[Samples, Samples]:
        """Its training and its test samples."""
        return self.part("train", data_dir, download), self.part("test", data_dir, download)

    def part(self, part: Part, data_dir: str | PathLike[str] | None = None, download: bool = True) -> Samples:
        """One part of it, checked against what the data set should hold."""
        root = folder(data_dir)
        data = self.read(root, part, download)
        if self.sizes is not None and len(data.y) != self.sizes[part == "test"]:
            expected = self.sizes[part == "test"]
            raise BadInput(f"{self.name}: {len(data.y)} {part} samples under {root}, {expected} expected: files are missing")
        if tuple(data.x.shape[1:]) != self.shape:
            raise BadInput(f"{self.name}: samples under {root} have shape {tuple(data.x.shape[1:])}, not {self.shape}")
        return data


def folder(data_dir: str | PathLike[str] | None = None) -> Path:
    """The folder of the data sets: as given, else $FEDHEAD_DATA, else ~/.cache/fedhead."""
    return Path(data_dir or os.environ.get("FEDHEAD_DATA") or Path.home() / ".cache" / "fedhead").expanduser()


def get(name: str) -> Dataset:
    """The data set of that name."""
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name]


def _digits(root: Path, part: Part, download: bool) -> Samples:
    """scikit-learn's digits, levels 0 … 16 stretched to bytes; every fifth sample of a class (by key) is for testing."""
    from sklearn.datasets import load_digits

    from fedhead.data.federation import stratified

    x, y = load_digits(return_X_y=True)
    everything = Samples(inputs(np.rint(x.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)), labels(y)[0])
    test = stratified(y, 360, seed=0)
    return everything.take(test if part == "test" else np.setdiff1d(np.arange(len(y)), test))


DATASETS: dict[str, Dataset] = {
    d.name: d
    for d in (
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
    )
}
