"""Process lifetimes: identity by pid and start time, exit together with the parent, SIGTERM as an exception."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class ProcessIdentity:
    """Identity of a process: its pid and start time."""

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
        """Return whether the process is still running."""
        return bool(self.started) and _started(self.pid) == self.started


def exit_with_parent(parent: int, seconds: float = 1.0) -> None:
    """Exit this process when its parent has ended, even if the parent was killed.

    Args:
        parent: Pid of the parent, passed by the parent itself, since it may end before `os.getppid` is called.
        seconds: Polling interval.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def raising_on_term(error: BaseException) -> Iterator[None]:
    """Raise an exception on SIGTERM, so that `finally` blocks clean up.

    An existing handler of the signal is kept.

    Args:
        error: Exception to raise in the main thread.
    """
    if threading.current_thread() is not threading.main_thread() or callable(signal.getsignal(signal.SIGTERM)):
        yield  # only the main thread receives signals
        return

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
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
