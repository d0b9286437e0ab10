"""Inputs of a model: one tensor, or a dictionary of named tensors, with samples along the first axis.

All code that indexes, moves, pads or concatenates inputs uses `map_inputs`, which handles both kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Inputs = Tensor | dict[str, Tensor]
Shape = tuple[int, ...] | dict[str, tuple[int, ...]]  # shape of one sample


def map_inputs(fn: Callable[..., Any], x: Any, *others: Any) -> Any:
    """Apply a function to the tensor, or to each of the named tensors.

    Args:
        fn: Function of a tensor and the corresponding tensors of `others`.
        x: Inputs.
        *others: Inputs with the same names.

    Returns:
        Inputs with the same names.

    >>> map_inputs(lambda t: t[:1], {"a": torch.zeros(3, 2), "b": torch.ones(3)})
    {'a': tensor([[0., 0.]]), 'b': tensor([1.])}
    """
    if isinstance(x, dict):
        return {name: fn(t, *(other[name] for other in others)) for name, t in x.items()}
    return fn(x, *others)


def channels_last(t: Tensor) -> Tensor:
    """Convert images and filters to channels last, the fastest format of convolutions; others are unchanged."""
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


def tensors_of(x: Inputs) -> list[Tensor]:
    """Return the tensors of inputs, in order."""
    return list(x.values()) if isinstance(x, dict) else [x]


def device_of(x: Inputs) -> torch.device:
    """Return the device of inputs."""
    return tensors_of(x)[0].device


def shape_of(x: Inputs) -> Any:
    """Return the shape of one sample, or a dictionary of shapes for named inputs."""
    return map_inputs(lambda t: tuple(t.shape[1:]), x)


def type_of(x: Inputs) -> Any:
    """Return the dtype of inputs, or a dictionary of dtypes for named inputs."""
    return map_inputs(lambda t: t.dtype, x)


def model_types(x: Inputs) -> Any:
    """Return the dtype in which a model receives stored inputs; integers (tokens) and masks keep theirs."""
    return map_inputs(lambda t: t.dtype if t.dtype in (torch.int64, torch.bool) else torch.float32, x)


def blank(shape: Any, types: Any) -> Inputs:
    """Return one sample of zeros, to test a model.

    Args:
        shape: Result of `shape_of`.
        types: Result of `type_of` or `model_types`.
    """
    if isinstance(shape, dict):
        return {name: torch.zeros(1, *sides, dtype=types[name]) for name, sides in shape.items()}
    return torch.zeros(1, *shape, dtype=types)


def describe(x: Inputs) -> str:
    """Describe shape and dtype of one sample for error messages.

    >>> describe({"ids": torch.zeros(2, 8, dtype=torch.int64), "age": torch.zeros(2, 1)})
    'ids (8,) int64 and age (1,) float32'
    """
    if isinstance(x, dict):
        return " and ".join(f"{name} {describe(t)}" for name, t in x.items())
    return f"{tuple(x.shape[1:])} {str(x.dtype).removeprefix('torch.')}"


def to_dtype(x: Inputs, dtype: torch.dtype) -> Any:
    """Convert floating-point inputs to a dtype; tokens and masks are unchanged."""
    return map_inputs(lambda t: t.to(dtype) if t.is_floating_point() else t, x)
