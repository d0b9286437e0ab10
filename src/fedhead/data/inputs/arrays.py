"""Conversion of user data (numpy, torch, lists) to the tensors that fedhead stores, with checks."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.log import logger
from fedhead.core.tree.inputs import Inputs, map_inputs

Layout = Literal["features", "tokens", "nhw", "nhwc", "nchw"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
CHANNELS = (1, 3)  # channels of images with an inferred layout
_IMAGES: dict[str, tuple[int, ...]] = {"nhw": (0, 1, 2), "nhwc": (0, 3, 1, 2), "nchw": (0, 1, 2, 3)}


class Samples(NamedTuple):
    """Stored inputs and labels, on the CPU.

    Attributes:
        x: Images, uint8 [N, C, H, W]; tokens, int64 [N, …]; features, float32 [N, …]; or a dictionary of these.
        y: Labels, int64 [N]; other targets, float32 [N, T].
    """

    x: Inputs
    y: Tensor

    def digest(self) -> bytes:
        """Return a hash of all inputs and labels, to detect changed data."""
        total = hashlib.blake2b(digest_size=16)
        names = sorted(self.x) if isinstance(self.x, dict) else []
        total.update("".join(f"{name}\n" for name in names).encode())
        for t in [*([self.x[n] for n in names] if isinstance(self.x, dict) else [self.x]), self.y]:
            total.update(f"{t.dtype} {tuple(t.shape)}".encode())
            total.update(t.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return total.digest()

    def take(self, indices: NDArray[np.int64]) -> Samples:
        """Select samples.

        Args:
            indices: Indices of the samples.

        Returns:
            The samples with these indices.
        """
        index = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))
        return Samples(map_inputs(lambda t: t[index], self.x), self.y[index])


def inputs(x: Any, layout: str | None = None, name: str = "x", missing: bool = False) -> Tensor:
    """Convert images to uint8 [N, C, H, W], tokens to int64 and other numbers to float32.

    Args:
        x: Array, tensor or list of samples.
        layout: Meaning of axes and numbers; None: inferred if unambiguous (`infer_layout`).
        name: Name of the data in error messages.
        missing: Whether NaN is allowed, as a missing value.

    Raises:
        BadInput: If the data is empty, not finite, has an unsupported type or shape, or needs a layout.

    >>> inputs(np.zeros((5, 28, 28), np.uint8)).shape, inputs(np.zeros((5, 8, 8, 3), np.uint8)).shape
    (torch.Size([5, 1, 28, 28]), torch.Size([5, 3, 8, 8]))
    """
    tensor = to_tensor(x, name)
    shape = tuple(tensor.shape)
    require(0 not in shape[1:], f"{name} has shape {shape}: its samples hold no numbers; give at least one each")
    if layout is None:
        layout = infer_layout(tensor, name)
    return _arrange(tensor, check_layout(layout), name, missing)


def stored_layout(x: Inputs) -> Any:
    """Return the layout of stored inputs, or a dictionary for named inputs; masks have none."""
    if isinstance(x, dict):
        return {name: stored_layout(t) for name, t in x.items() if t.dtype != torch.bool}
    return {torch.uint8: "nchw", torch.int64: "tokens"}.get(x.dtype, "features")


def check_layout(layout: str, prefix: str = "") -> str:
    """Return a layout, or raise `BadInput` if its name is unknown."""
    require(layout in LAYOUTS, f"{prefix}layout: {layout!r} is unknown, it is one of {', '.join(LAYOUTS)}")
    return layout


def infer_layout(x: Any, name: str = "x") -> Layout:
    """Return the only layout that an array can have.

    Floats are features, unless there are four axes and the last could be channels. Bytes are features with two axes,
    gray images with three, and images with four, with 1 or 3 channels first or last. Other integers are ambiguous:
    features or tokens.

    Raises:
        BadInput: If the layout is ambiguous; the message lists the possible layouts.
    """
    array = to_array(x, name)
    tensor = to_tensor(array[:0] if array.ndim else array, name)  # an empty slice: avoids a copy of large images
    shape, kind = array.shape, str(tensor.dtype).removeprefix("torch.")
    readings: tuple[Layout, ...]
    if tensor.is_floating_point():
        readings = ("nhwc", "nchw", "features") if len(shape) == 4 and shape[3] in CHANNELS else ("features",)
    elif tensor.dtype != torch.uint8:
        readings = ("features", "tokens") if len(shape) < 3 else ("features", "tokens", "nhw", "nhwc", "nchw")
    elif len(shape) == 3:
        thin = shape[1] in CHANNELS or shape[2] in CHANNELS  # may be a single image, or sequences of few values
        readings = ("nhw", "features", "tokens") if thin else ("nhw",)
    elif len(shape) == 4 and (shape[1] in CHANNELS) != (shape[3] in CHANNELS):
        readings = ("nchw",) if shape[1] in CHANNELS else ("nhwc",)
    elif len(shape) == 4:
        readings = ("nhwc", "nchw", "features")
    else:
        readings = ("features",)
    if len(readings) > 1:
        fitting = [name for name in readings if name not in _IMAGES or len(name) == len(shape)]
        choice = " or ".join(f'layout="{name}"' for name in fitting)
        raise BadInput(f"{name} is {kind} of shape {shape}, which can be read in several ways: state {choice}")
    if not tensor.is_floating_point():
        logger.info("%s, %s of shape %s, is read as layout=%s", name, kind, shape, readings[0])
    return readings[0]


def fitting_layout(x: Any, shape: Sequence[int], stated: str | None, name: str) -> str:
    """Return the layout that gives samples of a known shape, such as the shape that the server sends to a site.

    Args:
        x: The samples.
        shape: Shape of one stored sample.
        stated: Layout of the run's data; it decides whether integers are features or tokens.
        name: Name of the data in error messages.

    Raises:
        BadInput: If several layouts give this shape.
    """
    if stated in ("features", "tokens"):
        return stated
    actual = to_array(x, name).shape
    fitting = [
        name
        for name, axes in _IMAGES.items()
        if len(shape) == 3 and len(actual) == len(axes)
        if ((1, *actual[1:]) if name == "nhw" else tuple(actual[axis] for axis in axes[1:])) == tuple(shape)
    ]
    return fitting[0] if len(fitting) == 1 else infer_layout(x, name)


def _arrange(tensor: Tensor, layout: str, name: str, missing: bool) -> Tensor:
    """Convert a tensor of a known layout to the stored form."""
    shape = tuple(tensor.shape)
    require(tensor.ndim and len(tensor), f"{name} is empty: give at least one sample")
    require(tensor.ndim > 1, f"{name} has shape {shape}: it needs one row per sample, such as [N, features]")
    if layout == "tokens":
        return _tokens(tensor, name)
    if layout in _IMAGES:
        axes = _IMAGES[layout]
        wanted = ", ".join(layout.upper())
        require(tensor.ndim == len(axes), f'{name} has shape {shape}, layout="{layout}" is for [{wanted}]')
        tensor = tensor.unsqueeze(1) if layout == "nhw" else tensor.permute(axes)
        if not tensor.is_floating_point():
            low, high = int(tensor.min()), int(tensor.max())
            if low < 0 or high > 255:
                raise BadInput(f"{name} holds pixels {low} … {high}, images are 0 … 255: scale them, or give floats")
            return tensor.to(torch.uint8).contiguous()
    elif not tensor.is_floating_point() and int(tensor.abs().max()) > 2**24:
        logger.warning("%s holds whole numbers above 2**24, which float32 rounds", name)
    return _floats(tensor, name, missing)


def _tokens(tensor: Tensor, name: str) -> Tensor:
    require(not tensor.is_floating_point(), f"{name} holds {tensor.dtype}, tokens are whole numbers: give integers")
    lowest = int(tensor.min())
    require(lowest >= 0, f"{name} holds the token {lowest}: tokens count from 0")
    return tensor.to(torch.int64).contiguous()


def _floats(tensor: Tensor, name: str, missing: bool) -> Tensor:
    stored = tensor.to(torch.float32).contiguous()
    bad = ~torch.isfinite(stored.flatten(1))
    if missing:
        bad &= ~stored.flatten(1).isnan()
    if bad.any():
        row = int(bad.any(dim=1).nonzero()[0])
        kind = "NaN or infinite numbers"
        fix = 'clean the data (or missing="mean" for NaN in tables; with fedhead oneshot --missing mean)'
        if tensor[row].isfinite().all():
            kind, fix = "numbers beyond float32", "scale the data"
        raise BadInput(f"{name} holds {kind}, first in sample {row}: {fix}")
    return stored


def to_array(value: Any, name: str, noun: str = "samples") -> NDArray[Any]:
    """Return a user's values as an array on the CPU.

    Args:
        value: Array, tensor or list.
        name: Name of the data in error messages.
        noun: Name of its entries in error messages.

    Raises:
        BadInput: If the entries differ in shape, or a masked array has masked values.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return np.asarray(value.double() if value.dtype == torch.bfloat16 else value)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise BadInput(f"{name} has masked values: fill them first, such as with NaN and missing='mean'")
    try:
        return np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise BadInput(f"{name} can't be read as one array: its {noun} differ in shape") from error


def to_tensor(value: Any, name: str) -> Tensor:
    """Convert numbers to a CPU tensor; raise `BadInput` for values that are not numbers."""
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        if tensor.is_complex() or tensor.dtype == torch.bool:
            raise BadInput(f"{name} holds {tensor.dtype}: give integers or floats")
        return tensor
    array = to_array(value, name)
    kind = array.dtype.kind
    if kind in "US":
        raise BadInput(f"{name} holds texts: give token ids, or use Federation.from_dataset(…, encode=…)")
    if kind not in "uif" or array.dtype.itemsize > 8:
        raise BadInput(f"{name} holds {array.dtype}, not an array of numbers: give integers or floats (64 bits)")
    if kind == "u" and array.dtype != np.uint8:
        largest = array.max(initial=0)
        require(largest <= sys.maxsize, f"{name} holds {largest}, which is beyond 64-bit integers")
        array = array.astype(np.int64)  # torch supports few unsigned types
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), copy=True, order="C"))


def to_mask(values: Any, name: str) -> NDArray[np.bool_]:
    """Return a mask of test samples from a column of 0 and 1."""
    require(np.isin(values, (0, 1)).all(), f"test: {name} must hold 0 for training and 1 for test samples")
    return np.asarray(values, bool)
