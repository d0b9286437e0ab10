"""Board: the report page as a local web server, updated during runs."""

from __future__ import annotations

import ipaddress
import shlex
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedhead.core.system.errors import BadInput, require
from fedhead.report.compare.study_trials import study_folders
from fedhead.report.page.content import Content
from fedhead.report.page.page import Page, page
from fedhead.runs.read_runs import Run, load_run
from fedhead.runs.run_folder_schema import CONFIG

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from uvicorn import Server

# Starlette compares a host only up to its first colon: "[" allows every IPv6 address, but no host name.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "[")
SECONDS = 2.0  # interval between updates of a page
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
                found = {place: self._run(place) for place in self._places()}
                self._read = {place: self._read[place] for place in found}
                runs = [run for run in found.values() if isinstance(run, Run)]
                broken = {place: run for place, run in found.items() if isinstance(run, str)}
                content = Content(runs, broken, True, study_folders(self.paths), self._labels)
                self._page = page(content, shlex.join(["fedhead", "board", *map(str, self.paths)]))
                took = time.monotonic() - begin
                self._next = begin + took + took / SHARE
            return self._page

    def _places(self) -> list[Path]:
        found = (p.parent for path in self.paths for p in (path.glob(f"**/{CONFIG}") if path.is_dir() else ()))
        return sorted(dict.fromkeys(found))

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


def application(
    paths: Sequence[Path], hosts: Sequence[str] = LOOPBACK, labels: Mapping[str, str] | None = None
) -> Starlette:
    """Return the board as a web application.

    Args:
        paths: Run folders, or folders of present or future runs.
        hosts: Allowed host names of requests. Others are refused, so that no page of another site can read the board.
        labels: The user's labels of methods, stages or rows.

    Raises:
        BadInput: If `fedhead[board]` is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.responses import HTMLResponse, JSONResponse
        from starlette.routing import Route
    except ImportError as error:
        raise BadInput("board needs Starlette and uvicorn: install them with pip install 'fedhead[board]'") from error
    watched = Watched(paths, labels)

    def whole(request: Request) -> Response:
        return HTMLResponse(watched.page().html(SECONDS), headers=_HEADERS)

    def sections(request: Request) -> Response:
        now = watched.page()
        content = {
            "title": f"{now.title} – fedhead",
            "header": now.header,
            "navigation": now.navigation,
            "sections": [{"id": s.id, "digest": s.digest, "html": s.html} for s in now.sections],
        }
        return JSONResponse(content, headers=_HEADERS)

    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    return Starlette(routes=[Route("/", whole), Route("/sections", sections)], middleware=[trusted])


_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}


def serve(
    paths: Sequence[Path], host: str = "127.0.0.1", port: int = 8080, labels: Mapping[str, str] | None = None
) -> None:
    """Serve the board until it is interrupted.

    Args:
        paths: Run folders, or folders of present or future runs.
        host: Address to listen at. Whoever can reach it can read the runs.
        port: Port to listen at; 0: a free one.
        labels: The user's labels of methods, stages or rows.

    Raises:
        BadInput: If a folder does not exist, the address can't be used, or `fedhead[board]` is not installed.
    """
    for path in paths:
        require(path.is_dir(), f"{path} is no folder: give one in which runs are or will be, such as runs/")
    shown = f"[{host}]" if ":" in host else host
    server = server_of(application(paths, [*LOOPBACK, shown] if _is_loopback(host) else ["*"], labels))
    listening = _listen(host, port)
    print(f"board: http://{shown}:{listening.getsockname()[1]}/  (Ctrl-C ends it)", flush=True)
    if not _is_loopback(host):
        print("it can be read by everyone who reaches this address", flush=True)
    with listening:
        server.run(sockets=[listening])


def server_of(app: Starlette) -> Server:
    """Return an HTTP server of the board, without WebSockets and startup hooks."""
    import uvicorn

    return uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", lifespan="off", server_header=False))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        problem = f"can't listen at {host}:{port} ({error})"
        raise BadInput(f"board: {problem}: select another --port, or --port 0") from error
