"""Connection of the ClientApp to the site's worker, over a socket that only this user can open."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path

from flwr.app import RecordDict

START_SECONDS = 120.0
STARTED: list[subprocess.Popen[bytes]] = []  # workers outlive their first request


def ask(content: RecordDict, site: str) -> RecordDict:
    """Send a message's content to the worker and return its reply; start the worker if necessary."""
    parent = os.getppid()  # the SuperNode's executor; the worker exits with it
    path = _socket(site, parent)
    with _connected(path, site, parent) as connection:
        try:
            connection.send(content)  # pickle is safe between processes of one user
            reply: RecordDict = connection.recv()
            return reply
        except (EOFError, OSError) as error:
            raise RuntimeError("the site's worker ended before it had a response; its log has the details") from error


def _connected(path: Path, site: str, parent: int) -> Connection:
    deadline, started = time.monotonic() + START_SECONDS, None
    while True:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return Client(str(path), "AF_UNIX")
        if started is None or (started.poll() is not None and time.monotonic() < deadline):
            path.unlink(missing_ok=True)
            arguments = ["-m", "fedhead.flower.worker", site, str(path), str(parent)]
            started = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.DEVNULL)
            STARTED.append(started)
        if time.monotonic() > deadline:
            raise RuntimeError(f"the site's worker did not start within {START_SECONDS:g} s")
        time.sleep(0.05)


def _socket(site: str, parent: int) -> Path:
    folder = Path(tempfile.gettempdir()) / f"fedhead-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RuntimeError(f"{folder} is not this user's alone: remove it")
    name = hashlib.blake2b(f"{site}\n{parent}\n{sys.executable}".encode(), digest_size=8).hexdigest()
    return folder / f"{name}.sock"
