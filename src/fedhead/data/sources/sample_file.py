"""Samples in an .npz file or a folder of images: inputs, labels, and further arrays such as each sample's client.

See docs/data_files.md for the arrays. Any .npz file with x and y can be read, with or without clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput, require
from fedhead.data.inputs import arrays, encoders, labels
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.conversion import concatenate
from fedhead.data.inputs.labels import Classes
from fedhead.data.inputs.named_inputs import LayoutLike
from fedhead.data.inputs.npz_files import read_npz
from fedhead.data.inputs.table_columns import TableColumns
from fedhead.data.inputs.tokenize import Tokenizer
from fedhead.data.sources import dataset_cache, image_folders, images
from fedhead.data.transforms.named_transforms import AnyTransform

SAVED = "fedhead_federation"  # array that marks a file written by `Federation.save`
_OTHERS = ("x", "text", "offsets", "scale", "x_test", "y_test")  # arrays whose length is not the number of samples


@dataclass(frozen=True)
class Contents:
    """Contents of a file, a folder or a registered data set."""

    where: str  # name in error messages
    title: str  # name in records
    x: Any  # [N, …], or a dictionary of these
    y: Any
    layout: LayoutLike  # layout of x, if stated
    test: tuple[Any, Any] | None
    arrays: dict[str, NDArray[Any]] = field(repr=False)  # all arrays of the file
    classes: int | None = None  # None: not stated
    transform: AnyTransform | None = None  # None: not stated
    public: Samples | None = None

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, if the file has them; y then holds class indices."""
        return names_of(self.arrays, "class_names")

    @property
    def objective(self) -> str:
        """Objective stated in the file; multiclass by default."""
        return str(self.arrays.get("objective", "multiclass"))

    @property
    def columns(self) -> TableColumns | None:
        """Named columns of a table; None for other samples."""
        names = names_of(self.arrays, "column_names")
        return None if names is None or getattr(self.x, "ndim", 0) != 2 else TableColumns(dict.fromkeys(names))

    def labels(self, named: bool) -> Any:
        """Return y; with `named`, as class names if the file has them."""
        names = self.class_names
        if not named or names is None:
            return self.y
        index = Classes(len(names)).encode(labels.read(self.y), f"{self.where}: y")
        return np.array([names[i] for i in index.tolist()])

    def column(self, name: str) -> tuple[NDArray[Any] | None, tuple[str, ...] | None]:
        """Return an array with one entry per sample, and the names of its values, from NAME and NAME_names."""
        if name not in self.arrays:
            return None, None
        return self.arrays[name], names_of(self.arrays, f"{name}_names")

    def mask(self, name: str) -> NDArray[np.bool_]:
        """Return an array of 0 and 1 with one entry per sample, such as the marks of test samples."""
        values, _ = self.column(name)
        if values is None:
            known = ", ".join(key for key, value in self.arrays.items() if value.shape == (len(self.y),))
            raise BadInput(f"test: {self.where} has no array {name!r}; it has {known}")
        return arrays.to_mask(values, f"{name} of {self.where}")


def read_path(
    path: Path, size: int | None = None, encode: str | Tokenizer | None = None, layout: str | None = None
) -> Contents:
    """Read a file of samples or a folder of images; the last result is cached until a file changes.

    Args:
        path: An .npz file, or a folder of images: one folder per class, or one folder per client with class folders
            inside. Folders `train` and `test` (or `val`) may contain these.
        size: Resizes encoded images to size × size.
        encode: Encoder of texts or sounds, see `fedhead.data.inputs.encoders`.
        layout: Meaning of the axes as stated by the user; ignored for folders.

    Raises:
        BadInput: If it does not exist, or its contents are inconsistent.
    """
    if path.is_dir():
        for name, value in (("encode", encode), ("layout", layout)):
            require(value is None, f"{name}: this is for .npz files, {path} is a folder of images")
        files, read = sorted(path.rglob("*")), partial(_read_folder, path, size)
    else:
        fix = f"use Federation.from_dataset(pandas.read_csv({path.name!r}), label=…), and save it as .npz for recipes"
        require(path.suffix != ".csv", f"{path}: CSV files are not read directly; {fix}")
        files, read = [path] if path.exists() else [], partial(_read_file, path, size, encode)
    if callable(encode):  # a tokenizer, which may not be hashable
        return read()
    stamps = tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    contents: Contents = dataset_cache.read(((path.absolute(), stamps, size, encode),), read)
    return contents


def _read_folder(path: Path, size: int | None) -> Contents:
    inner = {d.name: d for d in image_folders.subfolders(path)}
    test_folders = inner.get("test") or inner.get("val")
    top = inner["train"] if "train" in inner and test_folders else path
    roots = image_folders.subfolders(top)
    require(roots, f"{path}: no folders in it; it needs one folder of images per class")
    by_client = all(image_folders.subfolders(root) for root in roots)
    where = roots if by_client else [top]
    names = sorted({d.name for root in where for d in image_folders.subfolders(root)})
    parts = [image_folders.decode(root, names, size) for root in where]
    train = concatenate(parts)
    arrays = {"class_names": np.array(names)}
    if by_client:
        arrays["site"] = np.repeat([root.name for root in roots], [len(part.y) for part in parts])
    test = image_folders.decode(test_folders, names, size) if top is not path and test_folders else None
    return Contents(str(path), path.name, train.x, train.y, "nchw", test, arrays)


def _read_file(path: Path, size: int | None, encode: str | Tokenizer | None) -> Contents:
    arrays = read_npz(path)
    title, named = path.name.removesuffix(".npz"), named_arrays(arrays, "x")
    source = "text" if "text" in arrays and "x" not in arrays else "x"
    for key in ("y",) if named else (source, "y"):
        listed = ", ".join(arrays) or "nothing"
        require(key in arrays, f"{path}: no array {key!r} (there is {listed}); it needs x and y")
    _check_lengths(path, arrays)
    if named:
        test = (named_arrays(arrays, "x_test"), arrays["y_test"]) if "y_test" in arrays else None
        stated = {name: str(value) for name, value in named_arrays(arrays, "layout").items()}
        return Contents(str(path), title, named, arrays["y"], stated, test, arrays)
    if "offsets" in arrays:
        x, layout = _of_any_length(path, arrays, source, size, encode)
    else:
        require(encode is None, f"encode: {encode} is for texts and sounds with offsets, {path} has none")
        x, layout = _of_one_shape(path, arrays, source)
    tests = [key for key in ("x_test", "y_test") if key in arrays]
    require(len(tests) != 1, f"{path}: {', '.join(tests)} is alone; a test set needs both x_test and y_test")
    pair = (arrays["x_test"], arrays["y_test"]) if tests else None
    return Contents(str(path), title, x, arrays["y"], layout, pair, arrays)


def _of_one_shape(path: Path, entries: dict[str, NDArray[Any]], source: str) -> tuple[NDArray[Any], str | None]:
    """Return the inputs, and their layout if the file states it."""
    x = entries[source]
    if x.dtype.kind in "US":
        raise BadInput(f"{path}: {source} holds words; texts are the arrays text (UTF-8 bytes) and offsets")
    named = [key for key in ("column_names", "channel_names") if key in entries]
    for key in named:
        if entries[key].shape != x.shape[1:2] or len(np.unique(entries[key])) < x.shape[1]:
            raise BadInput(f"{path}: {key} must be different names, one for each column or channel of x")
    if "scale" in entries:
        scale = entries["scale"]
        if x.ndim < 2 or scale.shape != x.shape[1:2]:
            raise BadInput(f"{path}: scale has shape {scale.shape}, it needs one number per channel of x {x.shape}")
        if scale.dtype.kind not in "iuf" or not (np.isfinite(scale) & (scale != 0)).all():
            raise BadInput(f"{path}: scale must hold finite numbers other than 0")
        factor = scale.astype(np.float32).reshape(1, -1, *(1,) * (x.ndim - 2))
        return x.astype(np.float32) * factor, "features"
    if "layout" in entries:
        return x, arrays.check_layout(str(entries["layout"]), f"{path}: ")
    return x, "features" if named else None


def _of_any_length(
    path: Path, entries: dict[str, NDArray[Any]], source: str, size: int | None, encode: str | Tokenizer | None
) -> tuple[Any, str | None]:
    """Return texts, sounds or encoded images as inputs of one shape."""
    pieces = _pieces(path, entries[source], entries["offsets"])
    if source == "text":
        return encoders.encode_texts([_text(path, i, piece) for i, piece in enumerate(pieces)], encode)
    if encode is not None and not isinstance(encode, str):
        raise BadInput(f"encode: a tokenizer is for texts, {path} has none")
    if "rate" in entries:
        return encoders.encode_sounds(pieces, int(entries["rate"]), encode)
    kind = entries[source].dtype
    require(kind == np.uint8, f"{path}: x with offsets is {kind}; it needs bytes of images, or rate for sounds")
    encoded = [images.Source(f"{path}, image {i}", piece.tobytes()) for i, piece in enumerate(pieces)]
    return images.decode(encoded, size), "nchw"


def _check_lengths(path: Path, entries: dict[str, NDArray[Any]]) -> None:
    """Check that all arrays with one entry per sample have the length of y."""
    require(entries["y"].ndim != 0, f"{path}: y is a single value; it needs one label per sample")
    samples = len(entries["y"])
    for name, array in entries.items():
        is_property = array.ndim and name not in _OTHERS and not name.endswith("_names") and "." not in name
        if is_property and len(array) != samples and SAVED not in entries:
            raise BadInput(f"{path}: {name} has {len(array)} entries, there are {samples} samples: they must match")


def named_arrays(entries: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays named PREFIX.NAME without the prefix."""
    return {key.removeprefix(f"{prefix}."): value for key, value in entries.items() if key.startswith(f"{prefix}.")}


def _pieces(path: Path, x: NDArray[Any], offsets: NDArray[Any]) -> list[NDArray[Any]]:
    """Cut an array at its offsets."""
    is_vector = offsets.ndim == 1 and len(offsets) > 1 and offsets.dtype.kind in "iu" and x.ndim == 1
    ends = offsets.astype(np.int64) if is_vector else offsets
    require(
        is_vector and ends[0] == 0 and ends[-1] == len(x) and (np.diff(ends) >= 0).all(),
        f"{path}: offsets must rise from 0 to the length {len(x)} of the array that they cut",
    )
    return np.split(x, ends[1:-1])


def _text(path: Path, number: int, piece: NDArray[Any]) -> str:
    try:
        return piece.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path}: the text of sample {number} is not UTF-8") from None


def names_of(arrays: dict[str, NDArray[Any]], key: str) -> tuple[str, ...] | None:
    """Return the names in an array, or None without this array."""
    return tuple(str(name) for name in arrays[key]) if key in arrays else None
