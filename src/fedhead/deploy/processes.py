"""Processes that are started, watched and ended by their numbers, and that end with whoever started them."""

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
from pathlib import Path

from fedhead.core.system.process import ProcessIdentity

MARK = "FEDHEAD_DEPLOYMENT"  # in the environment of every process of a deployment, with the folder of its private files
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def start(
    command: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path, *, outlive: bool = False
) -> subprocess.Popen[bytes]:
    """Start a process that leads its own session and writes to a log.

    Args:
        command: The program and its arguments.
        log: The file that its output is added to.
        env: Its whole environment.
        cwd: Its working folder.
        outlive: Whether it goes on when this process ends; otherwise, on Linux, it is told to end then, however this
            process came to its end.
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
            preexec_fn=None if outlive else _ends_with(os.getpid()),
        )


def _ends_with(parent: int) -> Callable[[], None] | None:
    """What a child does before its program starts, so that it ends with its parent."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: a forked child must not load anything

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)

    return bind


def marked(folder: Path) -> list[ProcessIdentity]:
    """Find all processes of a deployment by the mark in their environment, whoever their parents are by now."""
    wanted = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(ProcessIdentity.of(int(entry.name)))
    return [process for process in found if process.alive()]


def end(found: Callable[[], Sequence[ProcessIdentity]], seconds: float = 10.0) -> bool:
    """End processes, politely, then not; says whether there were any.

    Args:
        found: Returns those that run now; asked again and again, because they may start others.
        seconds: For them to end by themselves.
    """
    any_ran = False
    for how, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        signaled: set[ProcessIdentity] = set()
        deadline = time.monotonic() + wait
        while (alive := [process for process in found() if process.alive()]) and time.monotonic() < deadline:
            any_ran = True
            for process in set(alive) - signaled:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, how)
            signaled.update(alive)
            time.sleep(0.05)
    return any_ran


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [int(s.getsockname()[1]) for s in sockets]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of Flower's processes: offline, without telemetry, with this fedhead and this Python.

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
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
        **more,
    }
