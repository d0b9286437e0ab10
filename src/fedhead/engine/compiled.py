"""A step compiled: traced to a flat graph of tensor operations, which TorchInductor turns into fused kernels.

Tracing runs the step once and records what reaches the tensors, so a method may be written in any Python: no hook has
to be known to a Python-level compiler. The result works in place on its first arguments, as a CUDA graph needs it.
What the compiler made is kept on disk (TORCHINDUCTOR_CACHE_DIR) and found again by the next process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

InPlace = Callable[..., None]  # takes tensors, changes some of them, returns nothing


def trace(function: InPlace, arguments: list[Tensor]) -> torch.fx.GraphModule:
    """The operations that `function(*arguments)` performs, changes to its arguments included."""
    from torch.fx.experimental.proxy_tensor import make_fx

    copies = [t.clone() for t in arguments]  # the traced run changes what it is given
    with torch.autograd.set_multithreading_enabled(False):
        return make_fx(function, tracing_mode="real")(*copies)


def start_helpers() -> None:
    """Start the processes that compile kernels; they need some seconds to come up, which other work can fill."""
    from torch._inductor.async_compile import AsyncCompile

    for name in ("warm_pool", "wakeup"):  # not every release of torch has both
        getattr(AsyncCompile, name, bool)()


def compiled(function: InPlace, arguments: list[Tensor]) -> InPlace:
    """`function`, compiled for arguments of these shapes."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile as inductor
    from torch._inductor.async_compile import AsyncCompile
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    start_helpers()
    graph = trace(function, arguments)
    getattr(AsyncCompile, "wait_pool_ready", bool)()  # before they are there, one kernel after another is compiled here
    # The compiler looks into its cache only where it has a place for symbolic shapes, though there are none here.
    shapes = FakeTensorMode(shape_env=ShapeEnv())
    examples: list[Any] = [shapes.from_tensor(t, static_shapes=True) for t in arguments]
    with tracing(TracingContext(shapes)):
        kernel: Any = inductor(graph, examples)

    def run(*tensors: Tensor) -> None:
        kernel(*tensors)

    return run
