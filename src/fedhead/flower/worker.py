"""A site's worker: a process with torch and the data loaded that answers one request after another.

It is started by the ClientApp of the first request and leaves with the SuperNode, or after an idle time. A
changed site.yaml is read again; a new version of fedhead is taken up when the SuperNode is started anew.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from fedhead.core.system.process import ProcessIdentity, exit_with

IDLE_SECONDS = 900.0
LOOK_SECONDS = 0.5


def main(site: str, path: str, parent: int) -> None:
    """Answer requests at the socket until the parent has ended or no request has come for a long time."""
    mark, place = ProcessIdentity.of(parent), Path(path)
    with socket.socket(socket.AF_UNIX) as listener, contextlib.suppress(KeyboardInterrupt):
        before = os.umask(0o177)
        listener.bind(path)  # before torch is loaded: whoever asks may queue up from now on
        os.umask(before)
        listener.listen()
        listener.settimeout(LOOK_SECONDS)
        exit_with(mark, lambda: place.unlink(missing_ok=True))  # no process would receive the response
        try:
            _serve(listener, site)
        finally:
            place.unlink(missing_ok=True)


def _serve(listener: socket.socket, site: str) -> None:
    from fedhead.core.system.malloc import tune_malloc
    from fedhead.flower.factory import site_of
    from fedhead.flower.site.client_handler import respond

    tune_malloc()
    made, read_at, asked_at = None, 0.0, time.monotonic()
    while time.monotonic() - asked_at < IDLE_SECONDS:
        try:
            accepted, _ = listener.accept()
        except TimeoutError:
            continue
        accepted.setblocking(True)
        with Connection(accepted.detach()) as connection, contextlib.suppress(EOFError, OSError):
            content = connection.recv()
            changed_at = Path(site).stat().st_mtime if Path(site).exists() else -1.0
            if made is None or changed_at != read_at:
                made = site_of(site)
                read_at = changed_at
            connection.send(respond(content, made))
        asked_at = time.monotonic()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
