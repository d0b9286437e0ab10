"""A federation in one .npz file: samples, labels, and the client that each sample belongs to.

See docs/data.md for the arrays. Any .npz file with x and y can be read, with or without clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedhead.core.components.component_syntax import read_call
from fedhead.core.components.parameters import check
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import Inputs, map_inputs, tensors_of
from fedhead.data.inputs import arrays, encoders, labels, named_inputs, targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.encoders import Encoded
from fedhead.data.inputs.formats import read_npz
from fedhead.data.inputs.labels import Classes
from fedhead.data.inputs.missing_values import MissingValues
from fedhead.data.inputs.named_inputs import LayoutLike
from fedhead.data.inputs.tokenize import Tokenizer, tokenized
from fedhead.data.partitions import partition_file
from fedhead.data.sources import images
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import AnyTransform, NamedTransforms

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation

SAVED = "fedhead_federation"  # the array that marks a file written by `save`


@dataclass(frozen=True)
class Contents:
    """What a file holds."""

    path: Path
    x: NDArray[Any] | dict[str, NDArray[Any]]  # [N, …], or several by name
    y: NDArray[Any]
    layout: LayoutLike  # of x, where the file states it
    test: tuple[Any, Any] | None
    arrays: dict[str, NDArray[Any]] = field(repr=False)  # all arrays of the file

    @property
    def saved(self) -> bool:
        """Whether `save` wrote the file."""
        return SAVED in self.arrays

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, if the file has some; y holds class indices then."""
        return _names(self.arrays, "class_names")

    @property
    def objective(self) -> str:
        """What y holds, where the file states it; classes otherwise."""
        return str(self.arrays.get("objective", "multiclass"))

    def labels(self, named: bool) -> NDArray[Any]:
        """Return y, as the names of the classes if `named` and the file has names."""
        names = self.class_names
        if not named or names is None:
            return self.y
        index = Classes(len(names)).encode(labels.read(self.y), f"{self.path}: y")
        return np.array([names[i] for i in index.tolist()])

    def column(self, name: str) -> tuple[NDArray[Any] | None, tuple[str, ...] | None]:
        """Return an array with one entry per sample, and the names of its values, from NAME and NAME_names."""
        if name not in self.arrays:
            return None, None
        found = self.arrays[name]
        if found.shape != (len(self.y),):
            raise BadInput(f"{self.path}: {name} has shape {found.shape}, there are {len(self.y)} samples")
        return found, _names(self.arrays, f"{name}_names")

    def mask(self, name: str) -> NDArray[np.bool_]:
        """Return an array of 0 and 1 with one entry per sample, such as that which marks the test samples."""
        found, _ = self.column(name)
        if found is None:
            known = ", ".join(key for key, value in self.arrays.items() if value.shape == (len(self.y),))
            raise BadInput(f"test: {self.path} has no array {name!r}; it has {known}")
        if not np.isin(found, (0, 1)).all():
            raise BadInput(f"test: {name} of {self.path} must hold 0 for training and 1 for test samples")
        return found.astype(bool)


def read(path: Path, size: int | None = None, encode: str | Tokenizer | None = None) -> Contents:
    """Read a file of samples.

    Args:
        path: The .npz file.
        size: Resizes encoded images to size × size.
        encode: Encoder of texts or sounds, see `fedhead.data.inputs.encoders`.

    Raises:
        BadInput: If the file is not there, or what is in it does not go together.
    """
    held = read_npz(path)
    if {"text", "offsets", "site"} <= held.keys() and "y" not in held:
        return _next_characters(path, held, encode)
    if (named := _named(held, "x")) and "y" in held:
        test = (_named(held, "x_test"), held["y_test"]) if "y_test" in held else None
        stated = {name: str(value) for name, value in _named(held, "layout").items()}
        return Contents(path, named, held["y"], stated, test, held)
    source = next((name for name in ("x", "text") if name in held), None)
    for key in ("x" if source is None else source, "y"):
        if key not in held:
            raise BadInput(f"{path}: no array {key!r} (there is {', '.join(held) or 'nothing'}); it needs x and y")
    assert source is not None
    if held["y"].ndim == 0:
        raise BadInput(f"{path}: y is a single value; it needs one label per sample")
    x, layout = _inputs(path, held, source, size, encode)
    tests = [key for key in ("x_test", "y_test") if key in held]
    if len(tests) == 1:
        raise BadInput(f"{path}: {tests[0]} is alone; a test set needs both x_test and y_test")
    return Contents(path, x, held["y"], layout, (held["x_test"], held["y_test"]) if tests else None, held)


def _named(held: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays PREFIX.NAME by their names."""
    return {key.removeprefix(f"{prefix}."): value for key, value in held.items() if key.startswith(f"{prefix}.")}


def _inputs(
    path: Path, held: dict[str, NDArray[Any]], source: str, size: int | None, encode: str | Tokenizer | None
) -> tuple[NDArray[Any], str | None]:
    """Return the inputs of one shape, and their layout where the file states it."""
    x = held[source]
    if "offsets" in held:
        made = _of_any_length(path, _pieces(path, x, held["offsets"]), held, source, size, encode)
        return made.x, made.layout
    if encode is not None:
        raise BadInput(f"encode: {encode} is for texts and sounds with offsets, {path} has none")
    if "layout" in held:
        if (layout := str(held["layout"])) not in arrays.LAYOUTS:
            raise BadInput(f"{path}: layout {layout!r} is unknown, it is one of {', '.join(arrays.LAYOUTS)}")
        return x, layout
    if "scale" in held:
        if x.ndim < 2 or held["scale"].shape != (x.shape[1],):
            raise BadInput(
                f"{path}: scale has shape {held['scale'].shape}, it needs one number per channel of x {x.shape}"
            )
        factor = held["scale"].astype(np.float32).reshape(1, -1, *(1,) * (x.ndim - 2))
        return x.astype(np.float32) * factor, "features"
    named = "column_names" in held or "channel_names" in held  # of a table or of series: numbers
    return x, "features" if named else None


def _of_any_length(
    path: Path,
    pieces: list[NDArray[Any]],
    held: dict[str, NDArray[Any]],
    source: str,
    size: int | None,
    encode: str | Tokenizer | None,
) -> Encoded:
    """Return texts, sounds or encoded images as inputs of one shape."""
    if source == "text":
        texts = []
        for i, piece in enumerate(pieces):
            try:
                texts.append(piece.tobytes().decode("utf-8"))
            except UnicodeDecodeError:
                raise BadInput(f"{path}: the text of sample {i} is not UTF-8") from None
        if encode is not None and not isinstance(encode, str):
            return Encoded(tokenized(texts, encode), "tokens")
        return encoders.encode_texts(texts, encode)
    if encode is not None and not isinstance(encode, str):
        raise BadInput(f"encode: a tokenizer is for texts, {path} has none")
    if "rate" in held:
        return encoders.encode_sounds(pieces, int(held["rate"]), encode)
    if held[source].dtype != np.uint8:
        raise BadInput(f"{path}: x with offsets is {held[source].dtype}; it needs bytes of images, or rate for sounds")
    encoded = [images.Source(f"{path}, image {i}", piece.tobytes()) for i, piece in enumerate(pieces)]
    return Encoded(images.decode(encoded, size), "nchw")


def _pieces(path: Path, x: NDArray[Any], offsets: NDArray[Any]) -> list[NDArray[Any]]:
    """Cut an array at its offsets."""
    sound = offsets.ndim == 1 and len(offsets) > 1 and offsets.dtype.kind in "iu" and x.ndim == 1
    ends = offsets.astype(np.int64) if sound else offsets
    if not sound or ends[0] != 0 or ends[-1] != len(x) or (np.diff(ends) < 0).any():
        raise BadInput(f"{path}: offsets must rise from 0 to the length {len(x)} of the array that they cut")
    return np.split(x, ends[1:-1])


def _next_characters(path: Path, held: dict[str, NDArray[Any]], encode: str | Tokenizer | None) -> Contents:
    """Return windows of each client's texts, whose labels are the characters that follow; other arrays go with them."""
    call = read_call(encode if isinstance(encode, str) else "", "encode")
    if call.name != "next_character":
        raise BadInput(f"{path}: texts without labels y; give encode=next_character(80) to predict the next character")
    pieces = _pieces(path, held["text"], held["offsets"])
    sizes = np.array([len(piece) for piece in pieces])
    if held["site"].shape != sizes.shape:
        raise BadInput(f"{path}: site has shape {held['site'].shape}, there are {len(sizes)} texts")
    length = call.arguments("encode", {"length": encoders.Length}).get("length", 80)
    found = encoders.next_character(held["text"], np.repeat(np.arange(len(sizes)), sizes), held["site"], length)
    columns = {name: value[found.row] for name, value in held.items() if value.shape == sizes.shape}
    names = np.array([chr(code) for code in found.codes])
    return Contents(path, found.x, found.y, "tokens", None, {**held, **columns, "class_names": names})


def _names(held: dict[str, NDArray[Any]], key: str) -> tuple[str, ...] | None:
    return tuple(str(name) for name in held[key]) if key in held else None


# -- whole federations --------------------------------------------------------------------------------
def save(path: Path, federation: Federation) -> None:
    """Write a federation to a file from which `restore` makes the same."""
    owned = [] if federation.client_test is None or federation.client_test_from == "test" else federation.client_test
    site = np.full(len(federation.train.y), -1, np.int64)
    for rows in (federation.rows, owned, federation.validation or []):
        for k, own in enumerate(rows):
            site[own] = k
    held = federation.take(np.flatnonzero(site >= 0))
    names = federation.client_names or [str(k) for k in range(len(federation))]
    entries: dict[str, Any] = {
        SAVED: 1,
        **_arrays("x", held.train.x),
        "y": held.train.y.numpy(),
        "site": site[site >= 0],
        "site_names": list(names),
        **_entries("layout", arrays.stored_layout(held.train.x)),
        "classes": federation.classes,
        **_transform_entries(federation.transform),
        "title": federation.title,
        "partition": federation.partition,
    }
    if federation.objective != "multiclass":
        entries["objective"] = federation.objective
    if federation.names is not None:
        entries["class_names"] = list(federation.names)
    for name, data in (("test", federation.test), ("public", federation.public)):
        if data is not None:
            entries |= {**_arrays(f"x_{name}", data.x), f"y_{name}": data.y.numpy()}
    if held.client_test is not None:
        entries |= partition_file.pack(held.client_test, "client_test_rows", "client_test_ends")
        entries["client_test_from"] = held.client_test_from
    if held.validation is not None:
        entries |= partition_file.pack(held.validation, "validation_rows", "validation_ends")
    for name, filled in federation.missing.items():
        dot = f".{name}" if name else ""
        entries |= {f"missing_mean{dot}": list(filled.mean), f"missing_indicated{dot}": list(filled.indicated)}
    partition_file.write(path, **{name: np.asarray(value) for name, value in entries.items()})


def _arrays(key: str, x: Inputs) -> dict[str, Any]:
    """Return inputs as the arrays of a file: KEY, or KEY.NAME each."""
    return _entries(key, map_inputs(lambda t: t.numpy(), x))


def _entries(key: str, value: Any) -> dict[str, Any]:
    return {f"{key}.{name}": own for name, own in value.items()} if isinstance(value, dict) else {key: value}


def _transform_entries(transform: AnyTransform) -> dict[str, Any]:
    named = transform.parts if isinstance(transform, NamedTransforms) else {"": transform}
    found: dict[str, Any] = {}
    for name, one in named.items():
        dot = f".{name}" if name else ""
        found |= {f"mean{dot}": list(one.mean), f"std{dot}": list(one.std), f"augment{dot}": "+".join(one.augment)}
        if one.resize is not None:
            found[f"resize{dot}"] = one.resize
    return found


def _transform(contents: Contents) -> AnyTransform:
    held = contents.arrays

    def one(dot: str) -> Transform:
        steps = tuple(filter(None, str(held[f"augment{dot}"]).split("+")))
        side = int(held[f"resize{dot}"]) if f"resize{dot}" in held else None
        return Transform(tuple(held[f"mean{dot}"].tolist()), tuple(held[f"std{dot}"].tolist()), steps, resize=side)

    if isinstance(contents.x, dict):
        return NamedTransforms({name: one(f".{name}") for name in _named(held, "mean")})
    return one("")


def _check_rows(rows: list[NDArray[np.int64]] | None, limit: int, what: str) -> None:
    if any(own.size and (own.min() < 0 or own.max() >= limit) for own in rows or []):
        raise BadInput(f"{what} are not among its {limit} samples")


def _missing(held: dict[str, NDArray[Any]]) -> dict[str, MissingValues]:
    means = {"": held["missing_mean"]} if "missing_mean" in held else _named(held, "missing_mean")
    return {
        name: MissingValues(
            tuple(mean.tolist()),
            tuple(held[f"missing_indicated.{name}" if name else "missing_indicated"].astype(np.int64).tolist()),
        )
        for name, mean in means.items()
    }


def restore(contents: Contents) -> dict[str, Any]:
    """Return the parts of a federation that `save` wrote, as arguments of `Federation`."""
    held = contents.arrays
    try:
        local, validation = (
            partition_file.unpack(held, f"{name}_rows", f"{name}_ends") if f"{name}_rows" in held else None
            for name in ("client_test", "validation")
        )
        own_test = str(held.get("client_test_from", "train"))
        clients = len(held["site_names"])
        parts = {name: _samples(contents, name) for name in ("", "_test", "_public") if f"y{name}" in held}
        limit = len(parts["" if own_test == "train" else "_test"].y)
        _check_rows(local, limit, f"{contents.path}: its clients' test rows")
        _check_rows(validation, len(parts[""].y), f"{contents.path}: its validation rows")
        site = held["site"].copy()
        for apart in (local if own_test == "train" else None, validation):
            site[np.concatenate(apart or [np.zeros(0, np.int64)])] = -1
        return {
            "train": parts[""],
            "rows": [np.flatnonzero(site == k) for k in range(clients)],
            "classes": check("classes", int(held["classes"]), labels.Count),
            "test": parts.get("_test"),
            "public": parts.get("_public"),
            "client_test": local,
            "client_test_from": own_test,
            "validation": validation,
            "transform": _transform(contents),
            "names": contents.class_names,
            "client_names": _names(held, "site_names"),
            "title": str(held["title"]),
            "partition": str(held["partition"]),
            "objective": contents.objective,
            "missing": _missing(held),
        }
    except (KeyError, IndexError, ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"{contents.path}: not a federation that fedhead wrote ({error})") from None


def _samples(contents: Contents, part: str) -> Samples:
    held = _named(contents.arrays, f"x{part}") if isinstance(contents.x, dict) else contents.arrays[f"x{part}"]
    x = named_inputs.convert(held, contents.layout, f"{contents.path}: x{part}")
    held_y, what = contents.arrays[f"y{part}"], f"{contents.path}: y{part}"
    y: Any = (
        torch.from_numpy(labels.read(held_y, what))
        if targets.objective_of(contents.objective).has_classes
        else targets.read(held_y, contents.objective, what)
    )
    size = len(tensors_of(x)[0])
    if size != len(y):
        raise BadInput(f"{contents.path}: x{part} has {size} samples but y{part} has {len(y)} labels")
    return Samples(x, y)
