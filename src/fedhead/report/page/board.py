"""Board: the report page as a local web server, updated during runs."""

from __future__ import annotations

import ipaddress
import json
import shlex
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedhead.core.system.errors import BadInput, require
from fedhead.report.compare.study_trials import study_folders
from fedhead.report.page.content import Content
from fedhead.report.page.page import Page, page
from fedhead.runs.read_runs import Run, load_run
from fedhead.runs.run_folder_schema import CONFIG

SECONDS = 2.0  # interval between updates of a page
TIMEOUT = 60.0  # seconds in which a browser sends its request, and receives a page over a slow connection
SHARE = 0.1  # largest share of time spent on building pages
Stamp = tuple[tuple[str, int, int], ...]


class Watched:
    """Runs below some folders, cached until their files change.

    Args:
        paths: Run folders, or folders of present or future runs.
        labels: The user's labels of methods, stages or rows; they may belong to runs that do not exist yet.
    """

    def __init__(self, paths: Sequence[Path], labels: Mapping[str, str] | None = None):
        self.paths, self._labels = paths, labels or {}
        self._read: dict[Path, tuple[Stamp, Run | str]] = {}
        self._page: Page | None = None
        self._next = 0.0  # time of the next update
        self._lock = threading.Lock()  # the server is multi-threaded

    def page(self) -> Page:
        """Return the current page."""
        with self._lock:
            begin = time.monotonic()
            if self._page is None or begin >= self._next:
                entries = {place: self._run(place) for place in self._places()}
                self._read = {place: self._read[place] for place in entries}
                runs = [run for run in entries.values() if isinstance(run, Run)]
                broken = {place: run for place, run in entries.items() if isinstance(run, str)}
                content = Content(runs, broken, True, study_folders(self.paths), self._labels)
                self._page = page(content, shlex.join(["fedhead", "board", *map(str, self.paths)]))
                took = time.monotonic() - begin
                self._next = begin + took + took / SHARE
            return self._page

    def _places(self) -> list[Path]:
        folders = (p.parent for path in self.paths for p in (path.glob(f"**/{CONFIG}") if path.is_dir() else ()))
        return sorted(dict.fromkeys(folders))

    def _run(self, place: Path) -> Run | str:
        """Return a run, or the reason why it can't be read."""
        stamp = _stamp(place)
        known = self._read.get(place)
        if known is None or known[0] != stamp:
            try:
                run: Run | str = load_run(place)
            except BadInput as error:  # the folder is damaged, or is being written
                run = str(error)
            known = self._read[place] = stamp, run
        return known[1]


def _stamp(place: Path) -> Stamp:
    files = [file for pattern in ("*.json*", "*.yaml", "*.npz", "analysis/*") for file in place.glob(pattern)]
    stamps = []
    for file in sorted(files):
        try:
            status = file.stat()
        except OSError:  # another process replaced the file
            continue
        stamps.append((str(file), status.st_mtime_ns, status.st_size))
    return tuple(stamps)


def server(watched: Watched, host: str = "127.0.0.1", port: int = 8080) -> ThreadingHTTPServer:
    """Return the board's HTTP server.

    At a loopback address it answers only requests for such an address, so that no page of another site can read the
    board.

    Args:
        watched: Runs that are shown.
        host: Address to listen at. Whoever can reach it can read the runs.
        port: Port to listen at; 0: a free one.

    Raises:
        BadInput: If the address can't be used.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT

        def handle(self) -> None:
            with suppress(ConnectionError):  # the browser has left
                super().handle()

        def do_GET(self) -> None:
            if _is_loopback(host) and not _is_loopback(_name(self.headers.get("Host", ""))):
                self._reply(400, "text/plain", "the board is for this machine")
            elif self.path == "/":
                self._reply(200, "text/html", watched.page().html(SECONDS))
            elif self.path == "/sections":
                self._reply(200, "application/json", json.dumps(_sections(watched.page())))
            else:
                self._reply(404, "text/plain", "there is only /")

        def _reply(self, status: int, kind: str, text: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": f"{kind}; charset=utf-8", **_HEADERS}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: a page asks every two seconds."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        return Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        problem = f"can't listen at {host}:{port} ({error})"
        raise BadInput(f"board: {problem}: select another --port, or --port 0") from error


_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}


def _sections(page: Page) -> dict[str, Any]:
    """Return the parts of a page, with which it is updated in a browser."""
    return {
        "title": f"{page.title} – fedhead",
        "header": page.header,
        "navigation": page.navigation,
        "sections": [{"id": s.id, "digest": s.digest, "html": s.html} for s in page.sections],
    }


def serve(
    paths: Sequence[Path], host: str = "127.0.0.1", port: int = 8080, labels: Mapping[str, str] | None = None
) -> None:
    """Serve the board until it is interrupted.

    Args:
        paths: Run folders, or folders of present or future runs.
        host: Address to listen at, see `server`.
        port: Port to listen at; 0: a free one.
        labels: The user's labels of methods, stages or rows.

    Raises:
        BadInput: If a folder does not exist, or the address can't be used.
    """
    for path in paths:
        require(path.is_dir(), f"{path} is no folder: give one in which runs are or will be, such as runs/")
    with server(Watched(paths, labels), host, port) as running:
        shown = f"[{host}]" if ":" in host else host
        print(f"board: http://{shown}:{running.server_port}/  (Ctrl-C ends it)", flush=True)
        if not _is_loopback(host):
            print("it can be read by everyone who reaches this address", flush=True)
        running.serve_forever()


def _name(address: str) -> str:
    """Return the host of an address without its port; empty for an invalid one."""
    try:
        return urlsplit(f"//{address}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
