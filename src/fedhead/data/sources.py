"""User data from other sources: torch and Hugging Face data sets, folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedhead.core.errors import BadInput
from fedhead.data import image_folders
from fedhead.data.arrays import Samples


def torch_dataset(dataset: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the samples and labels of a torch `Dataset` of (sample, label) pairs."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadInput(f"{type(dataset).__name__} is not a torch Dataset with a length: give one that can be indexed")
    size = len(dataset)
    if size == 0:
        raise BadInput("the Dataset is empty: give at least one sample")
    pairs = [dataset[i] for i in range(size)]
    if not all(isinstance(p, tuple | list) and len(p) >= 2 for p in pairs[:1]):
        raise BadInput("the Dataset must yield (sample, label) pairs")
    return _stack([p[0] for p in pairs]), np.asarray([_label(p[1]) for p in pairs])


def columns(
    dataset: Any, image: str, label: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], Sequence[str] | None]:
    """Return two columns of a Hugging Face `Dataset`, and the class names if its features list them."""
    if not hasattr(dataset, "column_names"):
        raise BadInput(f"{type(dataset).__name__} is not a Hugging Face Dataset: give one split of it")
    known = list(dataset.column_names)
    for column in (image, label):
        if column not in known:
            raise BadInput(f"the data set has no column {column!r}; it has {', '.join(map(str, known))}")
    names = getattr((getattr(dataset, "features", None) or {}).get(label), "names", None)
    return _stack(list(dataset[image])), np.asarray(list(dataset[label])), names


class Folder(NamedTuple):
    """The contents of a folder of images."""

    parts: list[Samples]  # one per client, or a single one
    test: Samples | None
    names: tuple[str, ...]  # of the classes
    clients: tuple[str, ...] | None  # names of the folders of the clients, if there are such


def folder(path: Path, size: int | None) -> Folder:
    """Read a folder of class folders, or of client folders with class folders, optionally inside train and test."""
    if not path.is_dir():
        raise BadInput(f"{path}: no such folder")
    inner = {d.name: d for d in image_folders.subfolders(path)}
    held = inner.get("test") or inner.get("val")
    top = inner["train"] if "train" in inner and held else path
    roots = image_folders.subfolders(top)
    if not roots:
        raise BadInput(f"{path}: no folders in it; it needs one folder of images per class")
    by_client = all(image_folders.subfolders(root) for root in roots)
    where = roots if by_client else [top]
    names = tuple(sorted({d.name for root in where for d in image_folders.subfolders(root)}))
    parts = [image_folders.decode(root, names, size) for root in where]
    test = image_folders.decode(held, names, size) if top is not path and held else None
    return Folder(parts, test, names, tuple(root.name for root in roots) if by_client else None)


def _label(label: Any) -> Any:
    """A label of a data set, as a number or a word."""
    return label.item() if hasattr(label, "item") else label


def _stack(samples: list[Any]) -> np.ndarray[Any, Any]:
    """Stack samples (tensors, arrays or PIL images) to one array."""
    arrays = [np.asarray(s) for s in samples]
    shapes = {s.shape for s in arrays}
    if len(shapes) > 1:
        few = ", ".join(str(s) for s in sorted(shapes)[:3])
        raise BadInput(f"samples differ in shape ({few} …): resize them first")
    return np.stack(arrays)
