"""From the user's pairs (x, y) to samples: one layout and one numbering of the classes for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fedhead.core.errors import BadInput
from fedhead.data import arrays, labels
from fedhead.data.arrays import Samples
from fedhead.data.labels import Classes

Pair = tuple[Any, Any] | Samples


class Converted(NamedTuple):
    """The user's data as samples."""

    parts: list[Samples]  # in the order given; without those that are empty
    test: Samples | None
    public: Samples | None
    classes: Classes


def convert(
    parts: Mapping[str, Pair],
    test: Pair | None = None,
    public: Pair | None = None,
    names: Sequence[Any] | None = None,
    classes: int | None = None,
    layout: str | None = None,
    missing: bool = False,
) -> Converted:
    """Convert pairs of inputs and labels.

    Args:
        parts: Training data by its name in error messages; empty parts are left out.
        test: Global test set.
        public: Samples that all parties hold.
        names: Names of the classes, see `Classes.find`.
        classes: Number of classes, likewise.
        layout: Layout of all inputs; None infers it from the first part.
        missing: Whether NaN is allowed in inputs, as a missing value.

    Raises:
        BadInput: If there is no data, or it is inconsistent.
    """
    given = {**parts, **({} if test is None else {"test": test}), **({} if public is None else {"public": public})}
    for name, pair in given.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BadInput(f"{name} is {type(pair).__name__}: give a pair (x, y)")
    ys = {name: labels.read(y, f"{name} y") for name, (_, y) in given.items()}
    full = [name for name in parts if len(ys[name])]
    if not full:
        if len(parts) == 1:
            raise BadInput(f"{next(iter(parts))} data is empty: give at least one sample")
        raise BadInput("no client has any samples")
    found = _find_classes([ys[name] for name in full], names, classes, [] if test is None else [ys["test"]])
    if layout is None:
        layout = arrays.infer_layout(given[full[0]][0], f"{full[0]} x")
    made = {
        name: samples(given[name][0], ys[name], found, layout, name, missing)
        for name in given
        if name in full or name not in parts
    }
    first = made[full[0]].x
    for name, own in made.items():
        if name in parts and (own.x.shape[1:], own.x.dtype) != (first.shape[1:], first.dtype):
            raise BadInput(
                f"{name} holds {own.x.dtype} samples of shape {tuple(own.x.shape[1:])}, {full[0]} {first.dtype} of "
                f"{tuple(first.shape[1:])}: all clients need the same shape and type"
            )
    return Converted([made[name] for name in full], made.get("test"), made.get("public"), found)


def samples(x: Any, y: Any, classes: Classes, layout: str | None, what: str, missing: bool = False) -> Samples:
    """Convert inputs and labels of known classes, and check that they match.

    Args:
        x: Inputs.
        y: Labels.
        classes: Which label is which class.
        layout: Layout of the inputs; None infers it.
        what: Name of the data in error messages.
        missing: Whether NaN is allowed in the inputs.
    """
    read = labels.read(y, f"{what} y".strip())
    xs = arrays.inputs(x, layout, f"{what} x".strip(), missing)
    if len(xs) != len(read):
        raise BadInput(f"{what} x has {len(xs)} samples but y has {len(read)} labels: they must match".strip())
    return Samples(xs, classes.encode(read, f"{what} y".strip()))


def concatenate(parts: Sequence[Samples]) -> Samples:
    """Return the samples of several parts as one."""
    if len(parts) == 1:
        return parts[0]
    return Samples(torch.cat([own.x for own in parts]), torch.cat([own.y for own in parts]))


def _find_classes(
    ys: Sequence[Any], names: Sequence[Any] | None, classes: int | None, others: Sequence[Any]
) -> Classes:
    if len({y.dtype.kind == "U" for y in ys}) > 1:
        raise BadInput("some clients have words as labels, others numbers: give all the same labels")
    return Classes.find(labels.union(ys), names, classes, others)
