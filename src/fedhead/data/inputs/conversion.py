"""Conversion of users' pairs (x, y) to samples, with the same layout and class indices for all pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import describe, map_inputs, shape_of, tensors_of, type_of
from fedhead.data.inputs import labels, named_inputs, padding, targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.labels import Classes
from fedhead.data.inputs.named_inputs import LayoutLike

Pair = tuple[Any, Any] | Samples


class Converted(NamedTuple):
    """User data converted to samples."""

    parts: list[Samples]  # in the given order, without empty parts
    test: Samples | None  # several test sets are concatenated
    public: Samples | None
    classes: Classes


def convert(
    parts: Mapping[str, Pair],
    test: Pair | Mapping[str, Pair] | None = None,
    public: Pair | None = None,
    names: Sequence[Any] | None = None,
    classes: int | None = None,
    layout: LayoutLike = None,
    missing: bool = False,
    objective: str = "multiclass",
) -> Converted:
    """Convert pairs of inputs and labels.

    Args:
        parts: Training data keyed by its name in error messages; empty parts are left out.
        test: Global test set, or the clients' test sets keyed by their names in error messages.
        public: Public samples that the server and all clients have.
        names: Names of the classes, see `Classes.find`.
        classes: Number of classes, see `Classes.find`.
        layout: Layout of all inputs; None infers it from the first part.
        missing: Whether NaN is allowed in inputs, as a missing value.
        objective: Objective of y, see `fedhead.core.training.objectives`.

    Raises:
        BadInput: If the data is empty or inconsistent.
    """
    tests: Mapping[str, Pair] = {} if test is None else test if isinstance(test, Mapping) else {"test": test}
    given = {**parts, **tests, **({} if public is None else {"public": public})}
    for name, pair in given.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BadInput(f"{name} is {type(pair).__name__}: give a pair (x, y)")
    has_classes = targets.objective_of(objective).has_classes
    ys: dict[str, Any] = {
        name: labels.read(y, f"{name} y") if has_classes else targets.read(y, objective, f"{name} y")
        for name, (_, y) in given.items()
    }
    full = [name for name in parts if len(ys[name])]
    if not full:
        if len(parts) == 1:
            raise BadInput(f"{next(iter(parts))} data is empty: give at least one sample")
        raise BadInput("no client has any samples: give at least one")
    if has_classes:
        mapping = _find_classes([ys[name] for name in full], names, classes, [ys[name] for name in tests], objective)
    else:
        mapping = targets.columns([ys[name] for name in (*full, *tests)], names, classes, [*full, *tests])
    used = [name for name in given if name in full or name not in parts]
    xs = padding.pad_parts({name: given[name][0] for name in used})
    layout = named_inputs.infer(xs[full[0]], layout, f"{full[0]} x")
    converted = {name: samples(xs[name], ys[name], mapping, layout, name, missing) for name in used}
    first = converted[full[0]].x
    for name, part in converted.items():
        if name not in ("test", "public") and (shape_of(part.x), type_of(part.x)) != (shape_of(first), type_of(first)):
            raise BadInput(
                f"{name} holds samples {describe(part.x)}, {full[0]} {describe(first)}: all clients need the same "
                "shape and type"
            )
    test_samples = concatenate([converted[name] for name in tests]) if tests else None
    return Converted([converted[name] for name in full], test_samples, converted.get("public"), mapping)


def samples(x: Any, y: Any, classes: Classes, layout: LayoutLike, name: str, missing: bool = False) -> Samples:
    """Convert inputs and labels of known classes, and check that they match.

    Args:
        x: Inputs.
        y: Labels, or other targets from `targets.read`.
        classes: Mapping from labels to classes.
        layout: Layout of the inputs; None infers it.
        name: Name of the data in error messages.
        missing: Whether NaN is allowed in the inputs.
    """
    read = y if isinstance(y, Tensor) else labels.read(y, f"{name} y".strip())
    xs = named_inputs.convert(x, layout, f"{name} x".strip(), missing)
    size = len(tensors_of(xs)[0])
    if size != len(read):
        raise BadInput(f"{name} x has {size} samples but y has {len(read)} labels: they must match".strip())
    return Samples(xs, read if isinstance(read, Tensor) else classes.encode(read, f"{name} y".strip()))


def concatenate(parts: Sequence[Samples]) -> Samples:
    """Concatenate the samples of several parts."""
    if len(parts) == 1:
        return parts[0]
    x = map_inputs(lambda *each: torch.cat(each), *(part.x for part in parts))
    return Samples(x, torch.cat([part.y for part in parts]))


def _find_classes(
    ys: Sequence[Any], names: Sequence[Any] | None, classes: int | None, others: Sequence[Any], objective: str
) -> Classes:
    if len({y.dtype.kind == "U" for y in ys}) > 1:
        raise BadInput("some clients have words as labels, others numbers: give all the same labels")
    result = Classes.find(labels.union(ys), names, classes, others)
    if objective == "binary" and result.count != 2:
        fix = "give classes=2 if one is absent" if result.count < 2 else "use objective=multiclass"
        raise BadInput(f"objective=binary is for 2 classes, y holds {result.count}: {fix}")
    return result
