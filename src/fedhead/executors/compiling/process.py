"""Compilation in the background: another process compiles a traced step while this one trains it uncompiled.

The other process leaves what it has compiled in the compiler's cache on disk, where this one then finds it. A thread of
this process would be in the way of the training: it competes for Python's lock, and loading kernels waits for the GPU,
which is forbidden while a CUDA graph is captured.
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
    """Compiles steps one after another, each in its own process, which ends with this one at the latest.

    Args:
        command: Starts a process that reads a step from its standard input (`worker`).
    """

    def __init__(self, command: Sequence[str] = COMMAND):
        self._command = command
        self._starting, self._turn = threading.Lock(), threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []  # that are running; the first may be waiting for a step
        self._waiting: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)

    def start(self) -> None:
        """Start a process ahead of the first step: it takes seconds until it is ready."""
        with self._starting:
            if not self._processes:
                self._waiting = self._new_process()

    def submit(self, graph: torch.fx.GraphModule, forms: Sequence[TensorForm]) -> Future[None]:
        """Begin to compile a step; the future ends with the compiler's error, if there is one.

        It ends without an error also where the process fails. Such a step is not in the cache, and whoever uses it next
        compiles it.
        """
        made, step = Future[None](), pack(graph, forms)
        # a daemon, since nobody waits for it where the training ends first
        threading.Thread(target=self._compile, args=(step, made), name="compiler", daemon=True).start()
        return made

    def stop(self) -> None:
        """End all processes."""
        for process in list(self._processes):
            with suppress(OSError):
                process.kill()
                process.wait()

    def _compile(self, step: bytes, made: Future[None]) -> None:
        error = None
        with suppress(Exception):  # the process failed, or was ended
            with self._turn:
                process, self._waiting = self._waiting or self._new_process(), None
                answer = process.communicate(step)[0]
                self._processes.remove(process)
            error = json.loads(answer)["error"]
        if error is None:
            made.set_result(None)
        else:
            made.set_exception(RuntimeError(error))

    def _new_process(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # finds the modules that this one does
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*self._command, str(os.getpid())], env=environment, **pipes)
        self._processes.append(process)
        return process


def start_ahead(compile: str) -> None:
    """Start what compiles the first step of this machine, `compile` as in `select.COMPILE`; others are in the cache."""
    if compile == "never" or has_compiled():
        return
    if compile == "wait":
        start_compiler_workers()
    else:
        compiler_process().start()


@cache
def compiler_process() -> CompilerProcess:
    """Return the compiler that all executors of this process share."""
    return CompilerProcess()


def pack(graph: torch.fx.GraphModule, forms: Sequence[TensorForm]) -> bytes:
    """Return a traced step as bytes: its code, the tensors it holds, and the settings that decide how it is compiled.

    A `GraphModule` that is pickled would be traced anew by running it, and what depends on no argument would become a
    constant.
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
