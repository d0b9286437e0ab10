"""Conversion of labels (numbers, words) to classes 0 … C-1 with names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.log import logger
from fedhead.data.inputs.arrays import to_array

MOST = 1 << 20  # maximum number of classes: a table of clients and classes must fit into memory
Count = Annotated[int, AtLeast(1), AtMost(MOST)]  # number of classes
_LARGEST = 2**53  # largest integer that floats represent exactly


@dataclass(frozen=True)
class Classes:
    """Mapping from labels to class indices.

    Args:
        count: Number of classes.
        names: Names of the classes.
        values: Label of each class, words or integers; None if labels are class indices.
    """

    count: int
    names: tuple[str, ...] | None = None
    values: NDArray[Any] | None = None

    @classmethod
    def known(cls, y: NDArray[Any], names: Sequence[str] | None, count: int) -> Classes:
        """Return the mapping for known classes, such as those that the server sends to a site.

        Words are class names. Integers are class names if all names are whole numbers, and class indices otherwise.

        Args:
            y: Labels, from `read`.
            names: Names of the classes, if any.
            count: Number of classes.
        """
        words = None if names is None else tuple(names)
        if words is None:
            return cls(count)
        if y.dtype.kind == "U":
            return cls(count, words, np.array(words))
        try:
            return cls(count, words, np.array([int(word) for word in words], np.int64))
        except (ValueError, OverflowError):
            return cls(count, words)

    @classmethod
    def find(
        cls, y: NDArray[Any], names: Sequence[Any] | None, count: int | None, others: Sequence[Any] = ()
    ) -> Classes:
        """Find the classes of labels.

        Integers are class indices if `names` or `count` is given, or if they are 0, 1, … without a gap. Otherwise each
        label becomes a class, in rising order, with the label as its name.

        Args:
            y: Labels of the training data, from `read`.
            names: Names of the classes in order.
            count: Number of classes.
            others: Labels of test data, from `read`; they may fill gaps in the range of integers.

        Raises:
            BadInput: If names and count contradict each other.
        """
        if count is not None:
            check("classes", count, Count)
        words = None if names is None else tuple(str(name) for name in names)
        if words is not None:
            repeated = [repr(name) for name, times in Counter(words).items() if times > 1]
            require(not repeated, f"names: {', '.join(repeated)} names two classes")
            require(count is None or count == len(words), f"classes: {count} do not match the {len(words)} names")
        if y.dtype.kind == "U":
            values = np.array(words) if words is not None else np.unique(y)
            return cls(len(values), tuple(map(str, values)), values)
        if words is not None or count is not None:
            return cls(count or len(words or ()), words)
        values = np.unique(y)
        require(len(values) <= MOST, f"y holds {len(values):,} different labels, there can be {MOST:,} classes")
        tested = np.unique(np.concatenate([values[:0], *(o for o in others if o.dtype.kind == "i")]))
        everything = np.union1d(values, tested)
        if np.array_equal(everything, np.arange(len(everything))):
            untrained = np.setdiff1d(tested, values)
            require(
                0 in values,
                f"y holds {_few(values)}, the test labels are {_few(tested)}: number classes alike in both, or give "
                f"classes={len(everything)} if this is right",
            )
            if len(untrained):
                logger.warning("test labels %s have no training samples", _few(untrained))
            return cls(len(everything))
        names = tuple(map(str, values))
        logger.warning("labels %s become classes 0 … %d, with these names", _few(names), len(names) - 1)
        return cls(len(values), names, values)

    def encode(self, y: NDArray[Any], name: str) -> Tensor:
        """Return class indices, int64 [N].

        Args:
            y: Labels, from `read`.
            name: Name of the labels in error messages.

        Raises:
            BadInput: If a label is not a known class.
        """
        words, known_words = y.dtype.kind == "U", self.values is not None and self.values.dtype.kind == "U"
        if not len(y):
            return torch.zeros(0, dtype=torch.int64)
        if words != known_words:
            kinds = ("words", "numbers") if words else ("numbers", "words")
            raise BadInput(f"{name} holds {kinds[0]}, the training labels are {kinds[1]}: give the same labels")
        if self.values is None:
            check_range(y, self.count, name)
            return torch.from_numpy(y.astype(np.int64))
        order = np.argsort(self.values)
        place = np.searchsorted(self.values, y, sorter=order).clip(max=self.count - 1)
        index = order[place]
        if (strange := self.values[index] != y).any():
            raise BadInput(
                f"{name} holds the class {y[strange][0].item()!r}, which is not among {_few(self.names or ())}: "
                "give class_names=[…] with all classes, or correct it"
            )
        return torch.from_numpy(index.astype(np.int64))


def check_range(y: Any, classes: int, name: str) -> None:
    """Raise `BadInput` if a class index is outside 0 … classes-1.

    Args:
        y: Class indices, an array or tensor of at least one.
        classes: Number of classes.
        name: Name of the labels in error messages.
    """
    low, high = int(y.min()), int(y.max())
    wrong = low if low < 0 else high
    require(0 <= wrong < classes, f"{name}: label {wrong} is outside the {classes} classes 0 … {classes - 1}")


def read(y: Any, name: str = "y") -> NDArray[Any]:
    """Convert labels to a vector of int64 or of words.

    Args:
        y: One label per sample: integers, whole floats, booleans or words.
        name: Name of the labels in error messages.

    Raises:
        BadInput: If a label is missing, not whole or too large, or the number of labels is wrong.
    """
    array = to_array(y, name, "labels")
    require(
        array.ndim > 0,
        f"{name} is {y!r:.60}, not one label per sample: for a data frame or data set use "
        "fedhead.Federation.from_dataset(data, label=…)",
    )
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    require(
        array.ndim == 1,
        f"{name} has shape {array.shape}: give one class per sample (argmax of one-hot labels), or "
        "state objective=multilabel or objective=regression",
    )
    if array.dtype.kind in "OS":
        array = _objects(array.astype(object), name)
    if array.dtype.kind in "fu":
        return _whole(array, name)
    require(array.dtype.kind in "biU", f"{name} holds {array.dtype}: give class indices or names")
    return array if array.dtype.kind == "U" else array.astype(np.int64)


def union(ys: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the distinct labels of several vectors of one kind."""
    return np.unique(np.concatenate([np.unique(y) for y in ys]))


def _objects(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Convert Python objects to integers, floats or words."""
    import pandas as pd

    _refuse_missing(np.asarray(pd.isna(array)), name)
    if not all(isinstance(value, int | float | np.number | np.bool_) for value in array):
        # escape bytes that are not UTF-8, so that different labels stay different
        return np.array(
            [v.decode(errors="backslashreplace") if isinstance(v, bytes) else str(v) for v in array], np.str_
        )
    whole = all(isinstance(value, int | np.integer | np.bool_) for value in array)
    within = all(abs(value) < 2**63 for value in array)
    return np.array([value if within else math.inf for value in array], np.int64 if whole and within else np.float64)


def _whole(array: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Convert floats and unsigned integers to integers."""
    _refuse_missing(np.isnan(array), name)
    large = ~(np.abs(array) <= (_LARGEST if array.dtype.kind == "f" else np.iinfo(np.int64).max))
    for wrong, problem, fix in (
        (array != np.rint(array), "labels must be whole", ", or state objective=regression"),
        (large, "which is too large", ""),
    ):
        if wrong.any():
            label = array[wrong][0]
            shown = f"{label:g}" if array.dtype.kind == "f" else str(label)
            raise BadInput(f"{name} holds the label {shown}, {problem}: give class indices 0, 1, 2 …{fix}")
    return array.astype(np.int64)


def _refuse_missing(missing: NDArray[np.bool_], name: str) -> None:
    row = int(missing.argmax()) if len(missing) else 0
    require(not missing.any(), f"{name} has no label for sample {row} (NaN or None): leave samples without a label out")


def _few(names: Sequence[Any] | NDArray[Any], most: int = 8) -> str:
    return ", ".join(map(str, names[:most])) + (f" … ({len(names)} in all)" if len(names) > most else "")
