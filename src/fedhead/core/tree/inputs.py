"""Inputs of a model: one tensor, or a dictionary of named tensors, all with the samples along their first axis.

Whatever indexes, moves, pads or concatenates inputs does it through `map_inputs`, so that both kinds take one path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Inputs = Tensor | dict[str, Tensor]
Shape = tuple[int, ...] | dict[str, tuple[int, ...]]  # of one sample


def map_inputs(fn: Callable[..., Any], x: Any, *others: Any) -> Any:
    """Apply a function to the tensor, or to each of the named tensors.

    Args:
        fn: Called with a tensor and the corresponding ones of `others`.
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
    """Return images and filters with their channels innermost, which is what convolutions like best; others as is."""
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


def tensors_of(x: Inputs) -> list[Tensor]:
    """Return the tensors of inputs, in order."""
    return list(x.values()) if isinstance(x, dict) else [x]


def device_of(x: Inputs) -> torch.device:
    """Return the device of inputs."""
    return tensors_of(x)[0].device


def shape_of(x: Inputs) -> Any:
    """Return the shape of one sample: a tuple, or a tuple by name."""
    return {name: tuple(t.shape[1:]) for name, t in x.items()} if isinstance(x, dict) else tuple(x.shape[1:])


def type_of(x: Inputs) -> Any:
    """Return the dtype of inputs, by name where they have names."""
    return {name: t.dtype for name, t in x.items()} if isinstance(x, dict) else x.dtype


def model_types(x: Inputs) -> Any:
    """Return the dtype of a model's inputs from stored ones, by name likewise: tokens and masks keep theirs."""
    if isinstance(x, dict):
        return {name: model_types(t) for name, t in x.items()}
    return x.dtype if x.dtype in (torch.int64, torch.bool) else torch.float32


def blank(shape: Any, types: Any) -> Inputs:
    """Return one input of zeros, for trying a model.

    Args:
        shape: Shape of one sample, by name where inputs have names.
        types: Its dtype, by name likewise.
    """
    if isinstance(shape, dict):
        return {name: torch.zeros(1, *own, dtype=types[name]) for name, own in shape.items()}
    return torch.zeros(1, *shape, dtype=types)


def describe(x: Inputs) -> str:
    """Return shape and type of one sample, in words for error messages.

    >>> describe({"ids": torch.zeros(2, 8, dtype=torch.int64), "age": torch.zeros(2, 1)})
    'ids (8,) int64 and age (1,) float32'
    """
    if isinstance(x, dict):
        return " and ".join(f"{name} {describe(t)}" for name, t in x.items())
    return f"{tuple(x.shape[1:])} {str(x.dtype).removeprefix('torch.')}"


def to_dtype(x: Inputs, dtype: torch.dtype) -> Any:
    """Return inputs with floating-point tensors of a dtype; tokens and masks stay as they are."""
    return map_inputs(lambda t: t.to(dtype) if t.is_floating_point() else t, x)
