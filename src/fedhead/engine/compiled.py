"""A step compiled: traced to a flat graph of tensor operations, which TorchInductor turns into fused kernels.

Tracing runs the step once and records what reaches the tensors, so a method may be written in any Python: no hook has
to be known to a Python-level compiler. The result works in place on its first arguments, as a CUDA graph needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

InPlace = Callable[..., None]  # takes tensors, changes some of them, returns nothing


def trace(function: InPlace, arguments: list[Tensor]) -> torch.fx.GraphModule:
    """The operations that `function(*arguments)` performs, changes to its arguments included."""
    copies = [t.clone() for t in arguments]  # the traced run changes what it is given
    with torch.autograd.set_multithreading_enabled(False):
        return make_fx(function, tracing_mode="real")(*copies)


def compiled(function: InPlace, arguments: list[Tensor]) -> InPlace:
    """`function`, compiled for arguments of these shapes."""
    from torch._inductor import compile as inductor

    kernel: Any = inductor(trace(function, arguments), list(arguments))

    def run(*tensors: Tensor) -> None:
        kernel(*tensors)

    return run
