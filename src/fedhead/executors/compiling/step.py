"""Compilation of a step: it is traced to a flat graph of tensor operations, which TorchInductor compiles.

Tracing runs the step once on tensors without data and records the operations, so methods may use any Python code. The
compiled step updates its first arguments in place, as a CUDA graph requires. Compiled kernels are cached on disk
(TORCHINDUCTOR_CACHE_DIR) and reused by later processes.
"""

from __future__ import annotations

import copyreg
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from fedhead.core.system.errors import first_line
from fedhead.core.system.log import warn_once
from fedhead.executors.kernels.fusion import fuse

InPlace = Callable[..., None]  # function of tensors that changes some of them in place


def trace(function: InPlace, arguments: list[Tensor]) -> torch.fx.GraphModule:
    """Trace `function(*arguments)`, including in-place changes to its arguments, without executing it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.autograd.set_multithreading_enabled(False):
        return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)


class TensorForm(NamedTuple):
    """Shape, layout, dtype and device of an argument."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # in the storage
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, t: Tensor) -> TensorForm:
        """Return the form of a tensor."""
        return cls(tuple(t.shape), t.stride(), int(t.storage_offset()), t.dtype, t.device)

    def empty(self) -> Tensor:
        """Return an uninitialized tensor of this form."""
        if not self.offset:
            return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        whole = torch.empty(self.offset + last + 1, dtype=self.dtype, device=self.device)
        return whole.as_strided(self.shape, self.stride, self.offset)


def compile_step(
    function: InPlace,
    arguments: list[Tensor],
    changed: int,
    graph: torch.fx.GraphModule | None = None,
    has_run: bool = False,
) -> InPlace:
    """Compile a function that changes its arguments in place, and test the result on copies of them.

    Some failures occur only in a call: torch 2.11 expects another layout of a gradient in GoogLeNet.

    Args:
        function: Function of tensors.
        arguments: Example arguments; the compiled function takes the same shapes.
        changed: Number of the first arguments that the function changes.
        graph: Result of `trace`; None: the function is traced here.
        has_run: Whether the function has run before, so that its custom kernels are compiled.
    """
    use_torch_assembler()
    graph = graph or trace(function, arguments)
    forms = [TensorForm.of(t) for t in arguments]
    tried = [*(t.clone() for t in arguments[:changed]), *arguments[changed:]]
    with ThreadPoolExecutor(1, "warm-up") as background:
        if not has_run:
            background.submit(warm_up, function, tried)  # an error is raised again by the next call
        compiled = compile_graph(graph, forms)
    compiled(*tried)
    return compiled


def compile_graph(graph: torch.fx.GraphModule, forms: Sequence[TensorForm]) -> InPlace:
    """Compile a traced function, or load it from the compiler's cache.

    Args:
        graph: Result of `trace`; modified in place.
        forms: Forms of the arguments.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile as inductor
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    marker = _marker(graph, forms)  # before the graph is modified
    known = marker.exists()
    # The compiler uses its cache only with a shape environment, even without symbolic shapes.
    shapes = FakeTensorMode(shape_env=ShapeEnv())
    with shapes:
        examples: list[Any] = [form.empty() for form in forms]
    with tracing(TracingContext(shapes)):
        if not known:  # until its workers are ready, the compiler builds kernels serially
            getattr(AsyncCompile, "wait_pool_ready", bool)()
        # reordering loops fails on some steps of wide stacks, such as FedProx's (an assertion in torch 2.11)
        settings = {"loop_ordering_after_fusion": False} | ({"compile_threads": 1} if known else {})
        with config.patch(settings), _same_key_everywhere(), short_descriptions():
            kernel: Any = inductor(fuse(graph), examples)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()

    def run(*tensors: Tensor) -> None:
        kernel(*tensors)

    return run


def _same_key_everywhere() -> AbstractContextManager[object]:
    """Make the compiler's cache keys equal in all processes.

    A key is a digest of pickled arguments. Pickle names a memory format by the first module that imported torch, which
    differs between programs.
    """

    def reduced(kind: torch.memory_format) -> tuple[Any, ...]:
        return _memory_format, (str(kind).removeprefix("torch."),)

    return patch.dict(copyreg.dispatch_table, {torch.memory_format: reduced})


def _memory_format(name: str) -> torch.memory_format:
    layout: torch.memory_format = getattr(torch, name)
    return layout


def short_descriptions() -> AbstractContextManager[object]:
    """Make the compiler describe operators without their arguments.

    For each new custom operator torch 2.11 builds a log message, even if logging is off. It contains each argument with
    its whole computation, so its length doubles with every layer.
    """
    from torch._inductor.exc import OperatorIssue

    # torch has no option for this, so the method is patched temporarily
    return patch.object(OperatorIssue, "operator_str", staticmethod(lambda target, args, kwargs: f"target: {target}"))


def warn_not_compiled(error: Exception) -> None:
    """Log a warning that training continues uncompiled, with the same result."""
    warn_once(f"the step could not be compiled ({first_line(error)}); continuing without compilation")


def warm_up(function: InPlace, arguments: list[Tensor]) -> None:
    """Run the step once uncompiled, which compiles its custom kernels; the thread's current GPU is set."""
    if (where := arguments[0].device).type == "cuda":
        torch.cuda.set_device(where)
    function(*arguments)


# The compiler has worker processes that compile kernels in parallel. Starting them takes seconds, which are wasted if
# all kernels are cached. Therefore each compiled step leaves a marker file next to the compiler's cache.
def is_known(graph: torch.fx.GraphModule, forms: Sequence[TensorForm]) -> bool:
    """Return whether a step is in the compiler's cache on this machine."""
    return _marker(graph, forms).exists()


def has_compiled() -> bool:
    """Return whether any step was compiled on this machine before."""
    return _marker_folder().exists()


def start_compiler_workers() -> None:
    """Start the compiler's worker processes in the background."""
    from torch._inductor.async_compile import AsyncCompile

    for name in ("warm_pool", "wakeup"):  # not every release of torch has both
        getattr(AsyncCompile, name, bool)()


def use_torch_assembler() -> None:
    """Make custom kernels use the assembler that ships with torch, as the compiler's kernels do.

    The compiler sets this only before its first kernel. Kernels built before that would use Triton's own assembler, and
    would have another cache key than in a process that builds them later.
    """
    from torch._inductor.runtime import compile_tasks

    getattr(compile_tasks, "_set_triton_ptxas_path", bool)()


def _marker_folder() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "fedhead"


def _marker(graph: torch.fx.GraphModule, forms: Sequence[TensorForm]) -> Path:
    named = repr((graph.code, list(forms), torch.__version__))
    return _marker_folder() / hashlib.sha256(named.encode()).hexdigest()
