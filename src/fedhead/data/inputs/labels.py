"""Labels of any kind (numbers, words) as classes 0 … C-1, with their names kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import logger
from fedhead.data.inputs.arrays import refuse_mask

MOST = 1 << 20  # classes: a table of clients and classes must fit into memory
Count = Annotated[int, AtLeast(1), AtMost(MOST)]  # of classes
_LARGEST = 2**53  # of whole numbers that floats hold exactly


@dataclass(frozen=True)
class Classes:
    """Which label is which class.

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
        """Return how labels are read where the classes are already known, as at the sites of a deployment.

        Words are names. Integers are names too where all names are whole numbers, and class indices otherwise.

        Args:
            y: Labels, from `read`.
            names: Names of the classes, if they have some.
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
            others: Labels of test data, likewise; integers without a gap may be found there only.

        Raises:
            BadInput: If names and count contradict each other.
        """
        if count is not None:
            check("classes", count, Count)
        words = None if names is None else tuple(str(name) for name in names)
        if words is not None:
            _refuse_repeated(words)
            if count is not None and count != len(words):
                raise BadInput(f"classes: {count} do not match the {len(words)} names")
        if y.dtype.kind == "U":
            found = np.array(words) if words is not None else np.unique(y)
            return cls(len(found), tuple(map(str, found)), found)
        if words is not None or count is not None:
            return cls(count or len(words or ()), words)
        found = np.unique(y)
        if len(found) > MOST:
            raise BadInput(f"y holds {len(found):,} different labels, at most {MOST:,} classes can be told apart")
        everything = np.unique(np.concatenate([y, *(o for o in others if o.dtype.kind == "i")]))
        if np.array_equal(everything, np.arange(len(everything))):
            return cls(len(everything))
        names = tuple(map(str, found))
        logger.warning("labels %s become classes 0 … %d, with these names", _few(names), len(names) - 1)
        return cls(len(found), names, found)

    def encode(self, y: NDArray[Any], what: str) -> Tensor:
        """Return class indices, int64 [N].

        Args:
            y: Labels, from `read`.
            what: Name of the labels in error messages.

        Raises:
            BadInput: If a label is none of the classes'.
        """
        if self.values is None:
            if y.dtype.kind == "U" and len(y):
                raise BadInput(
                    f"{what} holds words such as {str(y[0])!r}, the training labels are numbers: give numbers"
                )
            if len(y) and (y.min() < 0 or y.max() >= self.count):
                wrong = y.min() if y.min() < 0 else y.max()
                raise BadInput(f"{what}: label {wrong} is outside the {self.count} classes 0 … {self.count - 1}")
            return torch.from_numpy(y.astype(np.int64))
        if not len(y):
            return torch.zeros(0, dtype=torch.int64)
        if (y.dtype.kind == "U") != (self.values.dtype.kind == "U"):
            kinds = ("words", "numbers") if y.dtype.kind == "U" else ("numbers", "words")
            raise BadInput(f"{what} holds {kinds[0]}, the training labels are {kinds[1]}: give the same labels")
        order = np.argsort(self.values)
        place = np.searchsorted(self.values, y, sorter=order).clip(max=self.count - 1)
        index = order[place]
        if (strange := self.values[index] != y).any():
            raise BadInput(
                f"{what} holds the class {_quoted(y[strange][0])}, which is not among {_few(self.names or ())}: "
                "give names=[…] with all classes, or correct it"
            )
        return torch.from_numpy(index.astype(np.int64))


def read(y: Any, what: str = "y") -> NDArray[Any]:
    """Convert labels to a vector of int64 or of words.

    Args:
        y: One label per sample: integers, whole floats, booleans or words.
        what: Name of the labels in error messages.

    Raises:
        BadInput: If a label is missing, not whole or too large, or there is not one label per sample.
    """
    if isinstance(y, Tensor):
        y = y.detach().cpu()
        y = (y.double() if y.is_floating_point() else y).numpy()
    refuse_mask(y, what)
    try:
        array = np.asarray(y)
    except ValueError as error:
        raise BadInput(f"{what} can't be read as one array: its labels differ in shape") from error
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise BadInput(
            f"{what} has shape {array.shape}: give one class per sample (argmax of one-hot labels), or "
            "state objective=multilabel or objective=regression"
        )
    if array.dtype.kind == "O":
        array = _objects(array, what)
    if array.dtype.kind == "S":
        array = _decoded(array, what)
    if array.dtype.kind == "f":
        return _whole(array, what)
    if array.dtype.kind == "u" and len(array) and int(array.max()) >= 2**63:
        raise BadInput(f"{what} holds the label {array.max()}, which is too large: give class indices 0, 1, 2 …")
    if array.dtype.kind in "bui":
        return array.astype(np.int64)
    if array.dtype.kind != "U":
        raise BadInput(f"{what} holds {array.dtype}: give class indices or names")
    return array


def union(ys: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the distinct labels of several vectors of one kind."""
    return np.unique(np.concatenate([np.unique(y) for y in ys]))


def _objects(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Python objects as integers, floats or words."""
    values = list(array)
    if (row := next((i for i, value in enumerate(values) if _missing(value)), None)) is not None:
        raise _missing_label(what, row)
    if all(isinstance(value, int | float | np.number | np.bool_) for value in values):
        try:
            fractional = any(isinstance(value, float | np.floating) for value in values)
            return np.array(values, np.float64 if fractional else np.int64)
        except OverflowError:
            raise BadInput(f"{what} holds a label that is too large: give class indices 0, 1, 2 …") from None
    return np.array([v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values], np.str_)


def _missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value
        return True


def _decoded(array: NDArray[Any], what: str) -> NDArray[Any]:
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{what} holds bytes that are no UTF-8 text: give words or numbers") from None


def _whole(array: NDArray[Any], what: str) -> NDArray[np.int64]:
    if (nan := np.isnan(array)).any():
        raise _missing_label(what, int(nan.argmax()))
    if (odd := array != np.rint(array)).any():
        raise BadInput(
            f"{what} holds {array[odd][0]:g}, labels must be whole: give class indices 0, 1, 2 …, "
            "or state objective=regression"
        )
    if (large := ~(np.abs(array) <= _LARGEST)).any():
        raise BadInput(f"{what} holds the label {array[large][0]:g}, which is too large: give class indices 0, 1, 2 …")
    return array.astype(np.int64)


def _missing_label(what: str, row: int) -> BadInput:
    return BadInput(f"{what} has no label for sample {row} (NaN or None): leave samples without a label out")


def _refuse_repeated(names: tuple[str, ...]) -> None:
    if len(set(names)) < len(names):
        raise BadInput(f"names: {next(n for n in names if names.count(n) > 1)!r} names two classes")


def _few(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" … ({len(names)} in all)" if len(names) > most else "")


def _quoted(value: Any) -> str:
    return repr(str(value)) if isinstance(value, str) else str(value)
