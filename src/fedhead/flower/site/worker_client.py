"""Connection of the ClientApp to the site's worker, over a pipe."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from os import getpid

from flwr.app import RecordDict


@dataclass
class Worker:
    """Running worker of a site."""

    site: str
    process: subprocess.Popen[bytes]
    connection: Connection

    @classmethod
    def start(cls, site: str) -> Worker:
        """Start a worker, which ends with this process."""
        ours, theirs = Pipe()
        with theirs:
            arguments = ["-m", "fedhead.flower.worker", site, str(theirs.fileno()), str(getpid())]
            process = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        return cls(site, process, ours)


_workers: list[Worker] = []  # the one that handled the last request


def ask(content: RecordDict, site: str) -> RecordDict:
    """Send a message's content to the worker and return its reply; start the worker if necessary."""
    if _workers and (_workers[0].site != site or _workers[0].process.poll() is not None):
        _workers.pop().connection.close()
    if not _workers:
        _workers.append(Worker.start(site))
    connection = _workers[0].connection
    try:
        connection.send(content)  # pickle is safe between processes of one user
        reply: RecordDict = connection.recv()
        return reply
    except (EOFError, OSError) as error:
        _workers[0].process.kill()
        _workers.pop().process.wait()
        raise RuntimeError("the site's worker ended before it had a response; its log has the details") from error
