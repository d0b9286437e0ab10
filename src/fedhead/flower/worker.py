"""Worker of a site: a process with torch and the data loaded that handles requests sequentially.

The ClientApp of the first request starts it. It exits with the SuperNode, or when idle. A changed site.yaml is
reloaded; a new version of fedhead needs a restart of the SuperNode.
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
from fedhead.flower.site.server_identity import server_identity

IDLE_SECONDS = 900.0
LOOK_SECONDS = 0.5


def main(site: str, path: str, parent: int) -> None:
    """Handle requests on the socket until the parent exits or the idle timeout."""
    mark, place = ProcessIdentity.of(parent), Path(path)
    with socket.socket(socket.AF_UNIX) as listener, contextlib.suppress(KeyboardInterrupt):
        before = os.umask(0o177)
        listener.bind(path)  # before loading torch, so that requests can queue
        os.umask(before)
        listener.listen()
        listener.settimeout(LOOK_SECONDS)
        exit_with(mark, lambda: place.unlink(missing_ok=True))  # end with the parent, which receives the responses
        try:
            _serve(listener, site, server_identity(parent))
        finally:
            place.unlink(missing_ok=True)


def _serve(listener: socket.socket, site: str, server: str) -> None:
    from fedhead.core.system.malloc import tune_malloc
    from fedhead.flower.factory import site_of
    from fedhead.flower.site.client_handler import respond

    tune_malloc()
    handler, read_at, asked_at = None, 0.0, time.monotonic()
    while time.monotonic() - asked_at < IDLE_SECONDS:
        try:
            accepted, _ = listener.accept()
        except TimeoutError:
            continue
        accepted.setblocking(True)
        with Connection(accepted.detach()) as connection, contextlib.suppress(EOFError, OSError):
            content = connection.recv()
            changed_at = Path(site).stat().st_mtime if Path(site).exists() else -1.0
            if handler is None or changed_at != read_at:
                handler = site_of(site)
                read_at = changed_at
            connection.send(respond(content, handler, server=server))
        asked_at = time.monotonic()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
