"""Faults in file operations: the n-th operation of a run kills the process, finds the disk full or no memory left."""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

from fedhead.core.tree import treefile

Fault = Callable[[str], None]  # called with what is being done
_CHANGING = ("replace", "rename", "unlink", "remove", "mkdir", "fsync", "chmod")
NEEDS_SPACE = ("open", "write", "fsync", "mkdir", "replace", "safetensors")


def kill(doing: str) -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def disk_full(doing: str) -> None:
    """Raise what the operating system says of a full disk; removing a file never needs space."""
    if doing == "safetensors":
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    if doing in NEEDS_SPACE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "disk")


def no_memory(doing: str) -> None:
    """Raise what Python and torch say where no memory is left."""
    if doing == "safetensors":
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: 8 bytes")
    raise MemoryError


@contextmanager
def faulty_files(fault: Fault, at: int, under: Path) -> Iterator[list[str]]:
    """Let the operation number `at` (from 0) on files under a folder fail; yield the list of all operations.

    A write that is interrupted, or that finds the disk full, has written half of its bytes before.
    """
    done: list[str] = []
    within = str(under)

    def reached(doing: str) -> bool:
        done.append(doing)
        return len(done) - 1 == at

    def concerns(*paths: Any) -> bool:
        return any(isinstance(p, str | os.PathLike) and os.fspath(p).startswith(within) for p in paths)

    class File(io.FileIO):
        full = False

        def write(self, data: Any) -> int:
            if self.full or reached("write"):
                if fault is kill or (fault is disk_full and not self.full):
                    half = super().write(bytes(data)[: len(bytes(data)) // 2])
                    if fault is disk_full:  # the system says how much there was room for, and fails the next time
                        self.full = True
                        return half
                fault("write")
            return super().write(data)

    opened, real_open, save_file = io.open, os.open, safetensors.torch.save_file
    originals = {name: getattr(os, name) for name in _CHANGING}

    def open_file(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None, newline: Any = None, *rest: Any, **more: Any) -> Any:  # fmt: skip  # noqa: E501
        if not concerns(file) or not set(mode) & set("wax+"):
            return opened(file, mode, buffering, encoding, errors, newline, *rest, **more)
        if reached("open"):
            fault("open")
        raw = File(file, mode.replace("b", "").replace("t", ""))
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline)

    def open_descriptor(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if concerns(path) and flags & os.O_CREAT and reached("open"):
            fault("open")
        return real_open(path, flags, *rest, **more)

    def changing(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if (name == "fsync" or concerns(*arguments)) and reached(name):
                fault(name)
            # what is in the kernel's hands outlives a process that is killed, so that nobody waits for the disk here
            return None if name == "fsync" else originals[name](*arguments, **more)

        return call

    def save(tensors: Any, path: Any, **more: Any) -> None:
        save_file(tensors, path, **more)
        if reached("safetensors"):
            os.truncate(path, Path(path).stat().st_size // 2)
            fault("safetensors")

    builtins.open = io.open = open_file  # type: ignore[assignment]
    os.open = open_descriptor
    treefile.save_file = save  # type: ignore[attr-defined]
    for name in _CHANGING:
        setattr(os, name, changing(name))
    try:
        yield done
    finally:
        builtins.open = io.open = opened
        os.open = real_open
        treefile.save_file = save_file  # type: ignore[attr-defined]
        for name, original in originals.items():
            setattr(os, name, original)
