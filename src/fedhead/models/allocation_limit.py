"""Memory limit for building models that another party specifies."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedhead.core.system.errors import require

_LENGTHS = ("size", "n", "m", "end", "steps")  # torch's argument names for the lengths of a new tensor


class AllocationLimit(TorchDispatchMode):
    """Context manager that limits the total size of new tensors, before they are allocated.

    It counts all tensors created from a shape, such as weights and buffers, even if they are freed again.

    Args:
        nbytes: Maximum number of bytes allocated in this context.
        fix: Advice to the user, the end of the error message.

    Raises:
        BadInput: If an allocation exceeds the limit.

    >>> with AllocationLimit(1000, "take fewer"):
    ...     torch.nn.Linear(10**9, 10**9)
    Traceback (most recent call last):
    fedhead.core.system.errors.BadInput: more than 1000 bytes are needed: take fewer
    """

    def __init__(self, nbytes: int, fix: str):
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._left, self._problem = nbytes, f"more than {nbytes} bytes are needed: {fix}"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the bytes that a call allocates."""
        kwargs = kwargs or {}
        self._left -= _bytes(func, args, kwargs)
        require(self._left >= 0, self._problem)
        return func(*args, **kwargs)


def _bytes(func: Any, args: Any, kwargs: Any) -> int:
    """Return the bytes of the tensor that a call creates from a shape, 0 for other calls."""
    arguments = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
    from_tensor = any(isinstance(value, Tensor) for value in arguments.values())
    if from_tensor and not func._schema.name.startswith("aten::new_"):
        return 0
    lengths = [arguments[name] for name in _LENGTHS if arguments.get(name) is not None]
    elements = math.prod(math.prod(length) if isinstance(length, list | tuple) else int(length) for length in lengths)
    return elements * (arguments.get("dtype") or torch.get_default_dtype()).itemsize if lengths else 0
