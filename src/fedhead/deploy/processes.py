"""Processes of a local federation, each in its own session; they end when their parent process ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from fedhead.core.system.errors import BadInput

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
# Flower connects only to the federation.
FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def require_flower() -> None:
    """Raise `BadInput` if Flower is not installed."""
    if find_spec("flwr") is None:
        raise BadInput("this needs Flower: pip install 'fedhead[flower]'")


def start(command: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    """Start a process in a new session; on Linux it is terminated when its parent exits or is killed.

    Args:
        command: Program and arguments.
        log: File that its output is appended to.
        env: Complete environment.
        cwd: Working directory.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            preexec_fn=_end_with(os.getpid()),
        )


def _end_with(parent: int) -> Callable[[], None] | None:
    """Return a hook for the child process that makes Linux terminate it when its parent ends."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: a forked child must not load anything

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:  # the parent ended before prctl was called
            os._exit(1)

    return bind


def stop(started: Sequence[subprocess.Popen[bytes]], seconds: float = 10.0) -> None:
    """Terminate processes and their children; kill those that have not ended in time."""
    deadline = time.monotonic() + seconds
    for process in started:
        _signal_group(process, signal.SIGTERM)
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        _signal_group(process, signal.SIGKILL)
        # bounded: a signal that interrupts `poll` can leave the lock of `Popen.wait` locked for ever
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the process group has ended
        os.killpg(process.pid, number)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [int(s.getsockname()[1]) for s in sockets]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of Flower's processes: offline, without telemetry, with the current fedhead and Python.

    Args:
        home: Flower's home folder.
        **more: Further variables.
    """
    bin_folder, package = Path(sys.executable).parent, Path(__file__).parents[2]
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(paths),
        "FLWR_HOME": str(home),
        **FLOWER,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
        **more,
    }
