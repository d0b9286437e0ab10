"""Error messages for code that can't be stacked: the user's line, the reason and the fix.

`torch.func.vmap` raises a RuntimeError deep inside PyTorch, with advice for direct callers of vmap.
"""

from __future__ import annotations

from fedhead.core.system.errors import BadInput, first_line
from fedhead.core.system.user_line import user_line

_NUMBER = "reads a number out of a tensor (.item(), float(), bool(), or a tensor in an if)", "torch.where"
_IN_PLACE = "changes a tensor in place", "operations that return new tensors"
# torch's own errors of an in-place change to a tensor without a client axis, or shared by all clients
_SHAPES, _SHARED = "doesn't match the broadcast shape", "refers to a single memory location"
# text of an error -> its cause, and a replacement that can be stacked
_KNOWN = {
    ".item()": _NUMBER,
    "data-dependent control flow": _NUMBER,
    "random operation": ("draws random numbers itself", "nn.Dropout or F.dropout, which draw by key"),
    "inplace": _IN_PLACE,
    "in-place": _IN_PLACE,
    _SHAPES: _IN_PLACE,
    _SHARED: _IN_PLACE,
    "dynamic shape": ("makes a tensor whose size depends on its numbers", "a mask of fixed size"),
}

_VMAP = "vmap", "functorch", "Batching rule"  # identify vmap's errors


class CannotStack(BadInput):
    """Error of a model or method that can't be stacked."""


def explain(error: RuntimeError) -> CannotStack | None:
    """Return the error for the user, or None if vmap did not raise it."""
    text = str(error)
    line = user_line(error, after="functorch")  # frames before vmap only call fedhead
    if not any(pattern in text for pattern in _VMAP) and not (line and (_SHAPES in text or _SHARED in text)):
        return None
    known = next((reason for pattern, reason in _KNOWN.items() if pattern in text), None)
    unknown = f"uses an operation that PyTorch can't vectorize ({first_line(error)})"
    cause, better = known or (unknown, "operations that torch.func.vmap knows")
    return CannotStack(
        f"executor stack: {line or 'the model'} {cause}, which can't be done for many clients at once: use "
        f"executor=loop, or {better}"
    )
