"""Conversion of user data (numpy, torch, lists) to the tensors that fedhead stores, with checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.errors import BadInput

CHANNELS = (1, 3)


class Samples(NamedTuple):
    """Stored inputs and labels, on the CPU."""

    x: Tensor  # uint8 [N, C, H, W] images, or float32 [N, …] features
    y: Tensor  # int64 [N]

    def take(self, rows: NDArray[np.int64]) -> Samples:
        """Return the samples with these indices."""
        index = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        return Samples(self.x[index], self.y[index])


def inputs(x: Any, what: str = "x") -> Tensor:
    """Convert images (HW, HWC or CHW) to uint8 [N, C, H, W] and other numbers to float32 [N, …].

    Args:
        x: Array, tensor or list of samples.
        what: Name of the data in error messages.

    Raises:
        BadInput: If the data is empty, not finite or has an unsupported type or shape.

    >>> inputs(np.zeros((5, 28, 28), np.uint8)).shape, inputs(np.zeros((5, 8, 8, 3), np.uint8)).shape
    (torch.Size([5, 1, 28, 28]), torch.Size([5, 3, 8, 8]))
    """
    tensor = _tensor(x, what)
    if tensor.ndim == 0 or len(tensor) == 0:
        raise BadInput(f"{what} is empty: give at least one sample")
    if tensor.ndim == 1:
        raise BadInput(f"{what} has shape {tuple(tensor.shape)}: it needs one row per sample, such as [N, features]")
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise BadInput(f"{what} holds {tensor.dtype}: give uint8 images or float features")
    if not tensor.is_floating_point() and tensor.dtype != torch.uint8 and tensor.ndim >= 3:
        if tensor.min() < 0 or tensor.max() > 255:
            raise BadInput(f"{what} holds whole numbers outside 0 … 255: give uint8 images, or floats")
        tensor = tensor.to(torch.uint8)
    if tensor.dtype == torch.uint8 and tensor.ndim == 3:
        tensor = tensor.unsqueeze(1)
    if tensor.ndim == 4 and tensor.shape[1] not in CHANNELS and tensor.shape[3] in CHANNELS:
        tensor = tensor.permute(0, 3, 1, 2)
    if tensor.dtype == torch.uint8 and tensor.ndim == 4:
        return tensor.contiguous()
    tensor = tensor.to(torch.float32).contiguous()
    finite = torch.isfinite(tensor.flatten(1)).all(dim=1)
    if not finite.all():
        bad = int((~finite).nonzero()[0])
        raise BadInput(f"{what} holds NaN or infinite numbers, first in sample {bad}: clean the data")
    return tensor


def labels(y: Any, names: Sequence[str] | None = None, what: str = "y") -> tuple[Tensor, Sequence[str] | None]:
    """Convert labels to int64 [N].

    Args:
        y: Class indices or class names.
        names: Class names in order; found in the data if None.
        what: Name of the data in error messages.

    Returns:
        The labels, and the class names if the labels were names.

    Raises:
        BadInput: If the labels are not one class per sample, or a name is unknown.
    """
    if not isinstance(y, Tensor):
        array = np.asarray(y)
        if array.dtype.kind in "USO" and array.ndim == 1:
            words = [w.decode() if isinstance(w, bytes) else str(w) for w in array]
            names = sorted(set(words)) if names is None else names
            number = {name: i for i, name in enumerate(names)}
            unknown = sorted(set(words) - set(names))
            if unknown:
                raise BadInput(f"{what} holds the class {unknown[0]!r}, which is not among {', '.join(names)}")
            return torch.tensor([number[w] for w in words], dtype=torch.int64), names
    tensor = _tensor(y, what)
    if tensor.ndim == 2 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    if tensor.ndim != 1:
        raise BadInput(
            f"{what} has shape {tuple(tensor.shape)}: give one class index per sample (argmax of one-hot labels)"
        )
    if tensor.is_floating_point() and not bool((tensor == tensor.round()).all()):
        raise BadInput(f"{what} holds numbers that are not whole: give class indices 0, 1, 2 …")
    return tensor.to(torch.int64).contiguous(), names


def samples(x: Any, y: Any, names: Sequence[str] | None = None, what: str = "") -> tuple[Samples, Sequence[str] | None]:
    """Convert inputs and labels and check that they match; see `inputs` and `labels`."""
    xs = inputs(x, f"{what} x".strip())
    ys, names = labels(y, names, f"{what} y".strip())
    if len(xs) != len(ys):
        raise BadInput(f"{what} x has {len(xs)} samples but y has {len(ys)} labels: they must match".strip())
    return Samples(xs, ys), names


def check_classes(data: Samples, classes: int, what: str) -> None:
    """Raise `BadInput` if a label is outside 0 … classes-1."""
    low, high = int(data.y.min()), int(data.y.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise BadInput(f"{what}: label {wrong} is outside the {classes} classes 0 … {classes - 1}")


def _tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise BadInput(f"{what} can't be read as one array: its samples differ in shape") from error
    if array.dtype.kind not in "buif":
        raise BadInput(f"{what} can't be read as an array of numbers (its dtype is {array.dtype})")
    if array.dtype.kind == "u" and array.dtype != np.uint8:
        array = array.astype(np.int64)  # torch supports few unsigned types
    return torch.from_numpy(np.array(array, copy=True, order="C"))
