"""Errors of what a stack can't do, in one line: the user's line that asks for it, why not, and the fix.

`torch.func.vmap` raises a RuntimeError somewhere inside PyTorch, with advice for people who call it themselves.
"""

from __future__ import annotations

from fedhead.core.system.errors import BadInput, first_line
from fedhead.core.system.user_line import user_line

_NUMBER = "reads a number out of a tensor (.item(), float(), bool(), or a tensor in an if)", "torch.where"
# what vmap says: what was done, and what does the same for many clients at once
_IN_PLACE = "changes a tensor in place", "operations that return new tensors"
# what torch itself says of a tensor changed in place that has no client axis, or is one and the same for all clients
_SHAPES, _SHARED = "doesn't match the broadcast shape", "refers to a single memory location"
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

_VMAP = "vmap", "functorch", "Batching rule"  # words by which its errors are known


class CannotStack(BadInput):
    """A model or a method does what can't be done for many clients at once."""


def explain(error: RuntimeError) -> CannotStack | None:
    """Return the error for the user, or None if it is not one of `vmap`'s."""
    text = str(error)
    line = user_line(error, after="functorch")  # what stands before vmap only called fedhead
    if not any(words in text for words in _VMAP) and not (line and (_SHAPES in text or _SHARED in text)):
        return None
    known = next((found for words, found in _KNOWN.items() if words in text), None)
    unknown = f"uses an operation that PyTorch can't vectorize ({first_line(error)})"
    what, better = known or (unknown, "operations that torch.func.vmap knows")
    return CannotStack(
        f"executor stack: {line or 'the model'} {what}, which can't be done for many clients at once: use "
        f"executor=loop, or {better}"
    )
