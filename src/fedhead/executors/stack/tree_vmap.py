"""`torch.func.vmap` for functions of trees, with less overhead.

`torch.func.vmap` traverses its arguments and results several times in Python, which takes longer than most hooks. This
module calls vmap's internal functions directly. They are not part of PyTorch's public API: if they are missing, vmap
itself is called, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.func import vmap

from fedhead.core.system.errors import machine_fault
from fedhead.core.tree.tree import Tree


def tree_vmap(function: Callable[..., Any], dims: Sequence[Any]) -> Callable[..., Any]:
    """Return `torch.func.vmap(function, tuple(dims))`, for functions of trees and named tuples of them.

    Args:
        function: Function of one client. If it fails, vmap calls it again, for vmap's error messages, unless the
            machine failed, such as out of memory.
        dims: Per argument 0, or a named tuple of 0 for fields with a client axis and None for the others.
    """

    def call(*args: Any) -> Any:
        try:
            return _call(function, dims, args)
        except Exception as error:
            if machine_fault(error) is not None:  # a retry would fail as well
                raise
        return vmap(function, in_dims=tuple(dims))(*args)

    return call


def _call(function: Callable[..., Any], dims: Sequence[Any], args: Sequence[Any]) -> Any:
    from torch._C._functorch import _add_batch_dim, _remove_batch_dim
    from torch._functorch.vmap import (  # type: ignore[attr-defined]  # torch lists no exports
        lazy_load_decompositions,
        vmap_increment_nesting,
    )

    lazy_load_decompositions()
    count = next(len(t) for arg, dim in zip(args, dims, strict=True) for t in _with_client_axis(arg, dim))
    with vmap_increment_nesting(count, "error") as level:

        def enter(t: Tensor) -> Tensor:
            return _add_batch_dim(t, 0, level)

        def leave(t: Tensor) -> Tensor:
            return _remove_batch_dim(t, level, count, 0)

        return _mapped(leave, function(*(_entered(enter, arg, dim) for arg, dim in zip(args, dims, strict=True))))


def _with_client_axis(value: Any, dim: Any) -> Sequence[Tensor]:
    """Return those tensors of an argument that have a client axis."""
    if dim is None:
        return []
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Tree):
        return list(value.tensors())
    pairs = zip(value, dim if isinstance(dim, tuple) else [dim] * len(value), strict=True)
    return [t for field, field_dim in pairs for t in _with_client_axis(field, field_dim)]


def _entered(enter: Callable[[Tensor], Tensor], value: Any, dim: Any) -> Any:
    """Return an argument without its client axis, as the function of one client sees it."""
    if dim is None:
        return value
    if not isinstance(dim, tuple):
        return _mapped(enter, value)
    return type(value)(*(_entered(enter, field, field_dim) for field, field_dim in zip(value, dim, strict=True)))


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to all tensors of a tensor, a tree or a named tuple."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Tree):
        return value.map(partial(_mapped, function))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(function, field) for field in value))
    raise TypeError(f"{type(value).__name__} is neither a tensor, nor a tree or a named tuple of them")
