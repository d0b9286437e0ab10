"""A limit on what building a model may allocate, for models that another party names."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedhead.core.system.errors import require

_LENGTHS = ("size", "n", "m", "end", "steps")  # what torch calls the lengths of a new tensor


class AllocationLimit(TorchDispatchMode):
    """Context that refuses tensors beyond a total size, before they are allocated.

    Counted are all tensors that are made from a shape (weights and buffers are), whether or not they are freed again.

    Args:
        nbytes: The most bytes that may be allocated in this context.
        fix: What the user can do about it, the end of the error's text.

    Raises:
        BadInput: As soon as more is asked for.

    >>> with AllocationLimit(1000, "take fewer"):
    ...     torch.nn.Linear(10**9, 10**9)
    Traceback (most recent call last):
    fedhead.core.system.errors.BadInput: more than 1000 bytes are needed: take fewer
    """

    def __init__(self, nbytes: int, fix: str):
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._left, self._problem = nbytes, f"more than {nbytes} bytes are needed: {fix}"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count what a call allocates."""
        kwargs = kwargs or {}
        self._left -= _bytes(func, args, kwargs)
        require(self._left >= 0, self._problem)
        return func(*args, **kwargs)


def _bytes(func: Any, args: Any, kwargs: Any) -> int:
    """Return the bytes of the tensor that a call makes from a shape, 0 for all other calls."""
    given = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
    if any(isinstance(value, Tensor) for value in given.values()) and not func._schema.name.startswith("aten::new_"):
        return 0
    lengths = [given[name] for name in _LENGTHS if given.get(name) is not None]
    elements = math.prod(math.prod(length) if isinstance(length, list | tuple) else int(length) for length in lengths)
    return elements * (given.get("dtype") or torch.get_default_dtype()).itemsize if lengths else 0
