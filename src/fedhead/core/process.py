"""The identity of a process: its pid and start time, so that a later process is not mistaken for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
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

    def watch() -> None:
        while other.alive():
            time.sleep(seconds)
        first()
        os._exit(1)

    if other.started:  # where the system does not tell when a process was started, nobody can watch it
        threading.Thread(target=watch, daemon=True).start()


def _started(pid: int) -> str | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
