"""From the ClientApp's process to the site's worker and back, over a socket that only this user can open."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

START_SECONDS = 120.0
STARTED: list[subprocess.Popen[bytes]] = []  # workers outlive the request that started them
_LENGTH = struct.Struct("!Q")


def ask(content: RecordDict, site: str) -> RecordDict:
    """The worker's reply to a message's content; the worker is started if there is none."""
    parent = os.getppid()  # the SuperNode's executor: the worker leaves when that is gone
    path = _socket(site, parent)
    with _connected(path, site, parent) as connection:
        try:
            send(connection, content)
            return receive(connection)
        except (EOFError, OSError) as error:
            raise RuntimeError("the site's worker ended before it had a response; its log has the details") from error


def _connected(path: Path, site: str, parent: int) -> socket.socket:
    deadline, started = time.monotonic() + START_SECONDS, None
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
        if started is None or (started.poll() is not None and time.monotonic() < deadline):
            path.unlink(missing_ok=True)
            words = ["-m", "fedhead.flower.worker", site, str(path), str(parent)]
            started = subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL)
            STARTED.append(started)
        if time.monotonic() > deadline:
            raise RuntimeError(f"the site's worker did not start within {START_SECONDS:g} s")
        time.sleep(0.05)


def _socket(site: str, parent: int) -> Path:
    folder = Path(tempfile.gettempdir()) / f"fedhead-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RuntimeError(f"{folder} is not this user's alone: remove it")
    name = hashlib.blake2b(f"{site}\n{parent}\n{sys.executable}".encode(), digest_size=8).hexdigest()
    return folder / f"{name}.sock"


# -- content as bytes -------------------------------------------------------------------------------
def send(connection: socket.socket, content: RecordDict) -> None:
    """Write a message's content: its texts and the arrays' descriptions as JSON, then the arrays' bytes."""
    arrays: list[bytes] = []
    described: dict[str, list[Any]] = {}
    for name, record in content.array_records.items():
        described[name] = [[key, a.dtype, list(a.shape), a.stype] for key, a in record.items()]
        arrays += [a.data for a in record.values()]
    texts = {
        name: {key: str(value) for key, value in record.items()} for name, record in content.config_records.items()
    }
    for part in (json.dumps({"texts": texts, "arrays": described}).encode(), *arrays):
        connection.sendall(_LENGTH.pack(len(part)))
        connection.sendall(part)


def receive(connection: socket.socket) -> RecordDict:
    """Read what `send` wrote."""
    head = json.loads(_part(connection))
    content = RecordDict()
    for name, described in head["arrays"].items():
        content[name] = ArrayRecord(
            {key: Array(dtype, tuple(shape), stype, _part(connection)) for key, dtype, shape, stype in described}
        )
    for name, texts in head["texts"].items():
        content[name] = ConfigRecord(texts)
    return content


def _part(connection: socket.socket) -> bytes:
    return bytes(_exactly(connection, _LENGTH.unpack(_exactly(connection, _LENGTH.size))[0]))


def _exactly(connection: socket.socket, size: int) -> bytearray:
    got = bytearray()
    while len(got) < size:
        more = connection.recv(min(size - len(got), 1 << 20))
        if not more:
            raise EOFError("the other side has gone")
        got += more
    return got
