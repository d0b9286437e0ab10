"""Processes that end with others, and on request; a process is identified by its pid and its start time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, identified by its pid and its start time."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Return the identity of a running process."""
        return cls(pid, _started(pid) or "")

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> ProcessIdentity:
        """Restore an identity from an entry of a state file."""
        return cls(int(entry["pid"]), str(entry["started"]))

    def alive(self) -> bool:
        """Whether this process is still running."""
        return bool(self.started) and _started(self.pid) == self.started


def exit_with(other: ProcessIdentity, first: Callable[[], object] = lambda: None, seconds: float = 0.5) -> None:
    """Let this process end, whatever it is doing, as soon as another one has gone.

    Args:
        other: The process without which this one is of no use.
        first: Called before this process ends.
        seconds: Between two looks.
    """
    if other.started:  # where the system does not tell when a process was started, nobody can watch it
        _exit_after(other.alive, first, seconds)


def exit_with_parent(parent: int, seconds: float = 1.0) -> None:
    """Let this process end, whatever it is doing, soon after its parent has, however that came to its end.

    Args:
        parent: The pid that the parent has told this process: it may be gone before this process can ask for it.
        seconds: Between two looks.
    """
    _exit_after(lambda: os.getppid() == parent, lambda: None, seconds)


def _exit_after(goes_on: Callable[[], bool], first: Callable[[], object], seconds: float) -> None:
    def watch() -> None:
        while goes_on():
            time.sleep(seconds)
        first()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def raising_on_term(error: BaseException) -> Iterator[None]:
    """Turn a request to terminate (SIGTERM) into an exception, so that `finally` blocks end what was started.

    Where a handler answers the signal already, that one does.

    Args:
        error: The exception, which the main thread raises.
    """
    if threading.current_thread() is not threading.main_thread() or callable(signal.getsignal(signal.SIGTERM)):
        yield  # signals reach the main thread only
        return

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: a second one must not break off the ending
        raise error

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _started(pid: int) -> str | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
