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

from fedhead.algorithm.client import INPUT_DIMS, ClientInputs
from fedhead.core.system.errors import machine_fault
from fedhead.core.tree.tree import Tree


def tree_vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch.func.vmap(function)`, for functions of trees and of the inputs of clients.

    Args:
        function: Function of one client. If it fails, vmap calls it again, for vmap's error messages, unless the
            machine failed, such as out of memory.
    """

    def call(*args: Any) -> Any:
        try:
            return _call(function, args)
        except Exception as error:
            if machine_fault(error) is not None:  # a retry would fail as well
                raise
        return vmap(function, in_dims=tuple(INPUT_DIMS if isinstance(arg, ClientInputs) else 0 for arg in args))(*args)

    return call


def _call(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    from torch._C._functorch import _add_batch_dim, _remove_batch_dim
    from torch._functorch.vmap import (  # type: ignore[attr-defined]  # torch lists no exports
        lazy_load_decompositions,
        vmap_increment_nesting,
    )

    lazy_load_decompositions()
    last = args[-1]
    count = len(last.counts if isinstance(last, ClientInputs) else next(last.tensors()))
    with vmap_increment_nesting(count, "error") as level:

        def enter(t: Tensor) -> Tensor:
            return _add_batch_dim(t, 0, level)

        def leave(t: Tensor) -> Tensor:
            return _remove_batch_dim(t, level, count, 0)

        return _mapped(leave, function(*(arg.map(enter) for arg in args)))


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to all tensors of a tensor, a tree or a named tuple."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Tree):
        return value.map(partial(_mapped, function))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(function, field) for field in value))
    raise TypeError(f"{type(value).__name__} is neither a tensor, nor a tree or a named tuple of them")
