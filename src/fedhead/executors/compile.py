"""A step compiled: traced to a flat graph of tensor operations, which TorchInductor turns into fused kernels.

Tracing runs the step once, on tensors without contents, and records what reaches them, so a method may be written in
any Python: no hook has to be known to a Python-level compiler. The result works in place on its first arguments, as a
CUDA graph needs it. What the compiler made is kept on disk (TORCHINDUCTOR_CACHE_DIR) and found again by the next
process.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

InPlace = Callable[..., None]  # takes tensors, changes some of them, returns nothing


def trace(function: InPlace, arguments: list[Tensor]) -> torch.fx.GraphModule:
    """The operations that `function(*arguments)` performs, changes to its arguments included; none is carried out."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.autograd.set_multithreading_enabled(False):
        return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)


def compiled(function: InPlace, arguments: list[Tensor], changed: int) -> InPlace:
    """`function`, which changes the first of its arguments, compiled for arguments of these shapes."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile as inductor
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    _choose_assembler()
    graph = trace(function, arguments)
    mark = _marks() / _digest(graph, arguments)
    known = mark.exists()
    # The compiler looks into its cache only where it has a place for symbolic shapes, though there are none here.
    shapes = FakeTensorMode(shape_env=ShapeEnv())
    examples: list[Any] = [shapes.from_tensor(t, static_shapes=True) for t in arguments]
    copies = [t.clone() for t in arguments[:changed]]
    with warmed_up(function, [*copies, *arguments[changed:]]), tracing(TracingContext(shapes)):
        if not known:  # before its helpers are there, the compiler makes one kernel after another by itself
            getattr(AsyncCompile, "wait_pool_ready", bool)()
        with config.patch(compile_threads=1) if known else nullcontext():
            kernel: Any = inductor(graph, examples)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()

    def run(*tensors: Tensor) -> None:
        kernel(*tensors)

    return run


@contextmanager
def warmed_up(function: InPlace, arguments: list[Tensor]) -> Iterator[None]:
    """Run the step once as it is, beside other work: what kernels it has of its own are compiled by that."""

    def warm_up() -> None:
        with suppress(Exception):  # it will fail again where someone listens
            function(*arguments)

    thread = threading.Thread(target=warm_up, name="dry_run")
    thread.start()
    try:
        yield
    finally:
        thread.join()


# The compiler has helpers, processes that compile kernels side by side. They need some seconds to come up, and where
# all kernels are cached those are lost: so each step that was compiled leaves a mark beside the compiler's cache.
def start_helpers() -> None:
    """Start the compiler's helpers now, while there is other work to do, if nothing was ever compiled here."""
    from torch._inductor.async_compile import AsyncCompile

    if not _marks().exists():
        for name in ("warm_pool", "wakeup"):  # not every release of torch has both
            getattr(AsyncCompile, name, bool)()


def _choose_assembler() -> None:
    """Let kernels of our own be made by the assembler that torch brings, as its compiler's are.

    The compiler sees to that only when it comes to its first kernel. What was made before, with Triton's own assembler,
    would not be found in the cache by a process in which it was later.
    """
    from torch._inductor.runtime import compile_tasks

    getattr(compile_tasks, "_set_triton_ptxas_path", bool)()


def _marks() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "fedhead"


def _digest(graph: torch.fx.GraphModule, arguments: list[Tensor]) -> str:
    forms = [(tuple(t.shape), t.dtype, t.device) for t in arguments]
    return hashlib.sha256(repr((graph.code, forms, torch.__version__)).encode()).hexdigest()
