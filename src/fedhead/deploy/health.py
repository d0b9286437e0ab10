"""Health of a server or a site, and its Prometheus metrics, from the records in its folder.

It loads neither torch nor Flower: a container's health check starts it every half minute.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.system.special_files import read_text
from fedhead.core.system.yaml_text import read_yaml
from fedhead.flower.ledger import LEDGER, Ledger
from fedhead.runs.run_folder_schema import METRICS, RESULT, read_rows

METRICS_PORT = 9464
FREE_BYTES = 64 * 2**20  # a folder with less space is not ready
# Types and descriptions of the metrics; those from `rounds_total` on are the server's alone.
_METRICS = {
    "alive": ("gauge", "1 if Flower's process answers."),
    "ready": ("gauge", "1 if it is alive and its folder can be written to."),
    "disk_free_bytes": ("gauge", "Space for the run folder or the site's state."),
    "requests_total": ("counter", "Requests in the ledger, by kind and decision."),
    "bytes_total": ("counter", "Bytes of tensors in the ledger: down to sites, up to the server."),
    "last_request_timestamp_seconds": ("gauge", "Time of the newest line of the ledger."),
    "rounds_total": ("counter", "Finished rounds of the run."),
    "round_seconds_total": ("counter", "Duration of the finished rounds."),
    "participants": ("gauge", "Sites whose replies counted in the last round."),
    "failures_total": ("counter", "Rounds without a site: its reply failed, or it was absent."),
    "finished": ("gauge", "1 if the run has ended."),
}


def flower_fault(address: str, authority: Path) -> str | None:
    """Return why Flower's process does not answer; None if it does.

    Args:
        address: Address of the process.
        authority: Certificate of the authority that issued the certificate at that address.
    """
    try:
        context = ssl.create_default_context(cafile=str(authority)) if address.startswith("https:") else None
        with urllib.request.urlopen(f"{address}/health", timeout=5, context=context):
            return None
    except FileNotFoundError:
        return f"{authority} is not there: copy it from the folder of `fedhead deploy certs`"
    except OSError as error:
        return f"Flower's process does not answer at {address} ({error})"


@dataclass
class Monitor:
    """Health and metrics of a server or a site.

    Args:
        folder: Run folder of a server, or state folder of a site.
        server: Whether it is a server.
        flower: Address of Flower's process on this machine.
        authority: Certificate of the authority that issued the certificate at that address.
    """

    folder: Path
    server: bool
    flower: str
    authority: Path
    _requests: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _bytes: Counter[str] = field(default_factory=Counter, init=False)
    _newest: float = field(default=0.0, init=False)
    _read: Counter[int] = field(default_factory=Counter, init=False)  # bytes by inode, which a renamed ledger keeps

    @classmethod
    def open(cls, path: Path, flower: str | None = None) -> Monitor:
        """Open the folder of a server.yaml or a site.yaml.

        Args:
            path: Folder.
            flower: Address of Flower's process; None: that of the files of `fedhead deploy init --target`.

        Raises:
            BadInput: If the folder has neither file, or the file can't be read.
        """
        server = (path / "server.yaml").is_file()
        file = path / ("server.yaml" if server else "site.yaml")
        if not file.is_file():
            raise BadInput(f"{path} has neither server.yaml nor site.yaml: give the folder of one of them")
        entries = read_yaml(read_text(file), str(file))
        key, default = ("out", "run") if server else ("state", "state")
        folder = entries.get(key, default) if isinstance(entries, dict) else default
        flower = flower or ("https://127.0.0.1:8000" if server else "http://127.0.0.1:9094")
        return cls(path / os.path.expanduser(str(folder)), server, flower, path / "certs" / "ca.crt")

    def fault(self, ready: bool = False) -> str | None:
        """Return why Flower's process does not answer or, with `ready`, why its folder can't be written to."""
        if (fault := flower_fault(self.flower, self.authority)) is not None:
            return fault
        if ready and not os.access(self._place, os.W_OK):
            return f"{self._place} can't be written to: check its owner and its volume"
        if ready and shutil.disk_usage(self._place).free < FREE_BYTES:
            return f"{self._place} has less than {FREE_BYTES >> 20} MB of free space: make room"
        return None

    @property
    def _place(self) -> Path:
        """The folder, or its parent as long as no request has created it."""
        return self.folder if self.folder.exists() else self.folder.parent

    def metrics(self) -> str:
        """Return all metrics in Prometheus' text format."""
        values: dict[str, dict[str, float]] = {
            "alive": {"": self.fault() is None},
            "ready": {"": self.fault(ready=True) is None},
            "disk_free_bytes": {"": shutil.disk_usage(self._place).free},
        }
        values |= self._ledger() | (self._rounds() if self.server else {})
        lines = []
        for name, samples in values.items():
            kind, text = _METRICS[name]
            lines += [f"# HELP fedhead_{name} {text}", f"# TYPE fedhead_{name} {kind}"]
            lines += [f"fedhead_{name}{labels} {float(value)!r}" for labels, value in samples.items()]
        return "\n".join(lines) + "\n"

    def _ledger(self) -> dict[str, dict[str, float]]:
        for path in Ledger(self.folder / LEDGER).files():
            with path.open("rb") as file:
                number = os.fstat(file.fileno()).st_ino
                file.seek(self._read[number])
                for line in file:
                    if line.endswith(b"\n"):  # else it is being written
                        self._read[number] += len(line)
                        self._count(line)
        return {
            "requests_total": {_labels(kind=k, decision=d): count for (k, d), count in sorted(self._requests.items())},
            "bytes_total": {_labels(direction=way): self._bytes[way] for way in ("down", "up")},
            "last_request_timestamp_seconds": {"": self._newest},
        }

    def _count(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except ValueError:  # cut off by the end of a process
            return
        self._requests[entry.get("kind", "unreadable"), entry["decision"].partition(":")[0]] += 1
        for way, trees in (("down", "asked"), ("up", "sent")):
            self._bytes[way] += sum(tree["bytes"] for tree in entry.get(trees, {}).values())
        self._newest = datetime.fromisoformat(entry["time"]).timestamp()

    def _rounds(self) -> dict[str, dict[str, float]]:
        rows = read_rows(self.folder / METRICS)
        failures = Counter(
            _labels(site=site, kind=kind) for row in rows for kind in ("failed", "absent") for site in row.get(kind, {})
        )
        return {
            "rounds_total": {"": len(rows)},
            "round_seconds_total": {"": sum(row["seconds"] for row in rows)},
            "participants": {"": rows[-1]["participants"] if rows else 0},
            "failures_total": dict(sorted(failures.items())),
            "finished": {"": (self.folder / RESULT).exists()},
        }


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def http_server(monitor: Monitor, host: str, port: int) -> HTTPServer:
    """Return an HTTP server of /healthz, /readyz and /metrics; whoever reaches it can read the metrics.

    Raises:
        BadInput: If the address can't be used.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds, since requests are answered one after the other

        def do_GET(self) -> None:
            if self.path == "/metrics":
                try:
                    self._reply(200, monitor.metrics(), "text/plain; version=0.0.4; charset=utf-8")
                except FedheadError as error:  # a damaged record
                    self._reply(503, str(error))
            elif self.path in ("/healthz", "/readyz"):
                fault = monitor.fault(ready=self.path == "/readyz")
                self._reply(503 if fault else 200, fault or "ok")
            else:
                self._reply(404, "here are /healthz, /readyz and /metrics")

        def _reply(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: probes ask several times a minute."""

    try:
        return HTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise BadInput(f"can't listen at {host}:{port} ({error}): select another --port") from error
