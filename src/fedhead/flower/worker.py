"""Worker of a site: a process with torch and the data loaded that handles requests sequentially.

The ClientApp of the first request starts it. It exits with the SuperNode, or when idle. A changed site.yaml is
reloaded; a new version of fedhead needs a restart of the SuperNode.
"""

from __future__ import annotations

import contextlib
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from fedhead.core.system.process import exit_with_parent
from fedhead.flower.site.server_identity import server_identity

IDLE_SECONDS = 900.0


def main(site: str, descriptor: int, parent: int) -> None:
    """Handle requests from the pipe until the parent exits or the idle timeout."""
    exit_with_parent(parent, 0.5)  # nobody would receive the response
    from fedhead.core.system.malloc import tune_malloc
    from fedhead.flower.factory import site_of
    from fedhead.flower.site.client_handler import respond

    tune_malloc()
    server, handler, read_at = server_identity(parent), None, 0.0
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while connection.poll(IDLE_SECONDS):
            content = connection.recv()
            changed_at = Path(site).stat().st_mtime if Path(site).exists() else -1.0
            if handler is None or changed_at != read_at:
                handler = site_of(site)
                read_at = changed_at
            connection.send(respond(content, handler, server=server))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
