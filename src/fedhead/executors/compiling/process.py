"""Background compilation: another process compiles a traced step while this one trains it uncompiled.

The other process writes the compiled step to the compiler's cache on disk, and this one loads it from there. A thread
would slow down training: it competes for Python's global lock. It would also synchronize with the GPU when it loads
kernels, which is forbidden during CUDA graph capture.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any

import torch

from fedhead.executors.compiling.step import TensorForm, has_compiled, start_compiler_workers

COMMAND = (sys.executable, "-m", "fedhead.executors.compiling.worker")


class CompilerProcess:
    """Background compiler of one step at a time. Each step has its own process; all of them end with this process.

    Args:
        command: Command of a worker process, which reads a step from its standard input (`worker`).
    """

    def __init__(self, command: Sequence[str] = COMMAND):
        self._command = command
        self._starting, self._turn = threading.Lock(), threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []  # running ones; the first may be waiting for a step
        self._waiting: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)

    def start(self) -> None:
        """Start a process before the first step, since starting takes seconds."""
        with self._starting:
            if not self._processes:
                self._waiting = self._new_process()

    def submit(self, graph: torch.fx.GraphModule, forms: Sequence[TensorForm]) -> Future[None]:
        """Start to compile a step; the future raises the compiler's error, if any.

        If the process itself fails, the future has no error. The step is then missing in the cache, and is compiled
        when it is next used.
        """
        future, step = Future[None](), pack(graph, forms)
        # a daemon: training may end without waiting for it
        threading.Thread(target=self._compile, args=(step, future), name="compiler", daemon=True).start()
        return future

    def stop(self) -> None:
        """Kill all processes."""
        for process in list(self._processes):
            with suppress(OSError):
                process.kill()
                process.wait()

    def _compile(self, step: bytes, future: Future[None]) -> None:
        error = None
        with suppress(Exception):  # the process failed or was killed
            with self._turn:
                process, self._waiting = self._waiting or self._new_process(), None
                answer = process.communicate(step)[0]
                self._processes.remove(process)
            error = json.loads(answer)["error"]
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(RuntimeError(error))

    def _new_process(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # same module search path
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*self._command, str(os.getpid())], env=environment, **pipes)
        self._processes.append(process)
        return process


def start_ahead(compile: str) -> None:
    """Start the compiler unless this machine has a compiler cache; `compile` is a key of `select.COMPILE`."""
    if compile == "never" or has_compiled():
        return
    if compile == "wait":
        start_compiler_workers()
    else:
        compiler_process().start()


@cache
def compiler_process() -> CompilerProcess:
    """Return the compiler shared by all executors of this process."""
    return CompilerProcess()


def pack(graph: torch.fx.GraphModule, forms: Sequence[TensorForm]) -> bytes:
    """Serialize a traced step: its code, its tensors and the settings that affect compilation.

    Not pickled as a `GraphModule`, which is traced again when it is loaded: values that depend on no argument would
    become constants.
    """
    code = graph.graph.python_code("self")
    names = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    step = {
        "source": code.src,
        "modules": {name: value.__name__ for name, value in code.globals.items() if isinstance(value, ModuleType)},
        "values": {name: value for name, value in code.globals.items() if not isinstance(value, ModuleType)},
        "attributes": {name: getattr(graph, name) for name in names},
        "forms": [tuple(form) for form in forms],
        "settings": {
            "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
            "threads": torch.get_num_threads(),
        },
    }
    packed = io.BytesIO()
    torch.save(step, packed)
    return packed.getvalue()
