"""Compilation of a step: traced to a flat graph of tensor operations, which TorchInductor turns into fused kernels.

Tracing runs the step once on tensors without data and records the operations, so a method may be written in any
Python: its hooks need no support by a Python-level compiler. The result works in place on its first arguments, as a
CUDA graph needs it. Compiled kernels are cached on disk (TORCHINDUCTOR_CACHE_DIR) and reused by later processes.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedhead.executors.kernels.fusion import fuse

InPlace = Callable[..., None]  # takes tensors, changes some of them in place


def trace(function: InPlace, arguments: list[Tensor]) -> torch.fx.GraphModule:
    """Record the operations of `function(*arguments)`, including changes to its arguments, without executing them."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.autograd.set_multithreading_enabled(False):
        return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)


def compile_step(function: InPlace, arguments: list[Tensor], changed: int) -> InPlace:
    """Compile a function that changes its arguments in place.

    Args:
        function: Function of tensors.
        arguments: Example arguments; the compiled function takes the same shapes.
        changed: How many of the first arguments the function changes.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile as inductor
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    _use_torch_assembler()
    graph = fuse(trace(function, arguments))
    marker = _marker_folder() / _digest(graph, arguments)
    known = marker.exists()
    # The compiler uses its cache only if there is a shape environment, though there are no symbolic shapes here.
    shapes = FakeTensorMode(shape_env=ShapeEnv())
    examples: list[Any] = [shapes.from_tensor(t, static_shapes=True) for t in arguments]
    copies = [t.clone() for t in arguments[:changed]]
    with warm_up(function, [*copies, *arguments[changed:]]), tracing(TracingContext(shapes)):
        if not known:  # until its workers are ready, the compiler builds kernels one by one
            getattr(AsyncCompile, "wait_pool_ready", bool)()
        # reordering loops fails on some steps of wide stacks, such as FedProx's (an assertion in torch 2.11)
        settings = {"loop_ordering_after_fusion": False} | ({"compile_threads": 1} if known else {})
        with config.patch(settings):
            kernel: Any = inductor(graph, examples)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()

    def run(*tensors: Tensor) -> None:
        kernel(*tensors)

    return run


@contextmanager
def warm_up(function: InPlace, arguments: list[Tensor]) -> Iterator[None]:
    """Run the step once uncompiled in a background thread, which compiles the custom kernels it uses."""

    where = arguments[0].device

    def run() -> None:
        with suppress(Exception):  # it will fail again in the caller's thread
            if where.type == "cuda":
                torch.cuda.set_device(where)
            function(*arguments)

    thread = threading.Thread(target=run, name="warm-up")
    thread.start()
    try:
        yield
    finally:
        thread.join()


# The compiler has worker processes that compile kernels in parallel. They take some seconds to start, which are wasted
# if all kernels are cached: so each compiled step leaves a marker file next to the compiler's cache.
def start_compiler_workers() -> None:
    """Start the compiler's worker processes in the background if nothing was compiled on this machine yet."""
    from torch._inductor.async_compile import AsyncCompile

    if not _marker_folder().exists():
        for name in ("warm_pool", "wakeup"):  # not every release of torch has both
            getattr(AsyncCompile, name, bool)()


def _use_torch_assembler() -> None:
    """Let custom kernels use the assembler that ships with torch, as the compiler's kernels do.

    The compiler sets this only before its first kernel. Kernels built earlier, with Triton's own assembler, would not
    be found in the cache by a process that builds them later.
    """
    from torch._inductor.runtime import compile_tasks

    getattr(compile_tasks, "_set_triton_ptxas_path", bool)()


def _marker_folder() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "fedhead"


def _digest(graph: torch.fx.GraphModule, arguments: list[Tensor]) -> str:
    forms = [(tuple(t.shape), t.dtype, t.device) for t in arguments]
    return hashlib.sha256(repr((graph.code, forms, torch.__version__)).encode()).hexdigest()
