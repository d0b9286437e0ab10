"""Health and metrics of a server and its sites: those of the run's records, during and after a run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from flwr.app import Error

from fedhead.cli import call
from fedhead.deploy import health
from fedhead.deploy.health import Monitor, http_server
from fedhead.deploy.project import Project
from fedhead.flower import factory, ledger
from fedhead.flower.ledger import Ledger
from fedhead.flower.server_run import serve
from fedhead.testing.inprocess import InProcess

WORDS = ["subset=120", "rounds=3", "client_test=0.2"]


@contextmanager
def listening(server: HTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def flower() -> Iterator[str]:
    """A process that answers /health as those of Flower do."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with listening(HTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield address


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(text: str) -> dict[str, float]:
    """Read Prometheus' text format: every sample has a type, and its name is in one group."""
    kinds, values, group = dict[str, str](), dict[str, float](), ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            group, kind = line.split()[2:]
            assert group not in kinds
            assert kind == ("counter" if group.endswith("_total") else "gauge")
            kinds[group] = kind
        elif not line.startswith("# HELP "):
            name, _, value = line.rpartition(" ")
            assert name.partition("{")[0] == group
            values[name.removeprefix("fedhead_")] = float(value)
    return values


def test_the_endpoint_follows_a_run_and_equals_its_records(tmp_path: Path, flower: str) -> None:
    project = Project.init(tmp_path / "demo", "digits", ["north", "south"], WORDS)
    nodes = {10 + k: factory.site(file) for k, file in enumerate(project.sites().values())}
    grid = InProcess(nodes)
    grid.faults[11] = lambda message, honest: (
        Error(0, "gone")
        if message.metadata.message_type == "train.work" and message.metadata.group_id == "2"
        else honest()
    )
    seen: list[dict[str, float]] = []
    with listening(http_server(Monitor.open(project.path, flower), "127.0.0.1", 0)) as address:
        assert get(f"{address}/healthz") == get(f"{address}/readyz") == (200, "ok")
        assert samples(get(f"{address}/metrics")[1])["rounds_total"] == 0  # before the run
        serve(project.server(), grid, log=lambda line: seen.append(samples(get(f"{address}/metrics")[1])))
        status, text = get(f"{address}/metrics")
        assert get(f"{address}/secrets")[0] == 404
        record = project.path / "run" / "metrics.jsonl"
        rows = [json.loads(line) for line in record.read_text().splitlines()]
        record.write_text(json.dumps(rows[1]) + "\n")
        damaged, why = get(f"{address}/metrics")
    assert (status, damaged) == (200, 503)
    assert "is of round 2, it must be of round 1" in why
    assert {1.0, 2.0, 3.0} <= {values["rounds_total"] for values in seen}
    values = samples(text)
    assert values["rounds_total"] == len(rows) == 3
    assert values["round_seconds_total"] == pytest.approx(sum(row["seconds"] for row in rows))
    assert values["participants"] == rows[-1]["participants"] == 2
    assert rows[1]["participants"] == 1
    assert values['failures_total{site="south",kind="failed"}'] == 1
    assert (values["alive"], values["ready"], values["finished"]) == (1, 1, 1)
    entries = list(Ledger.find(project.path / "run").entries())
    assert values['requests_total{kind="hello",decision="received"}'] == 2
    assert values['requests_total{kind="work",decision="failed"}'] == 1
    assert sum(value for name, value in values.items() if name.startswith("requests_total")) == len(entries)
    sites = [samples(Monitor.open(project.path / "sites" / name, flower).metrics()) for name in ("north", "south")]
    up = values['bytes_total{direction="up"}']
    assert up == sum(site['bytes_total{direction="up"}'] for site in sites) == sum(row["bytes_up"] for row in rows)
    assert sites[0]['requests_total{kind="work",decision="sent"}'] == 3
    assert "rounds_total" not in sites[0]


def test_lines_are_counted_once_when_the_ledger_grows_and_rotates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yaml").write_text("name: north\ndata: recipe\nstate: kept\n")
    monitor, book = Monitor.open(tmp_path, "http://127.0.0.1:1"), Ledger(tmp_path / "kept" / "ledger.jsonl")
    name = 'requests_total{kind="work",decision="sent"}'
    monkeypatch.setattr(ledger, "ROTATE_BYTES", 100)
    for count in range(1, 6):
        book.append({"kind": "work", "decision": "sent", "sent": {"send": {"bytes": 7}}})
        values = samples(monitor.metrics())
        assert (values[name], values['bytes_total{direction="up"}']) == (count, 7 * count)
    assert len(book.files()) > 2
    with book.path.open("a") as file:
        file.write('{"kind": "work", ')  # being written
    assert samples(monitor.metrics())[name] == 5


def test_the_command_is_a_health_check(
    tmp_path: Path, flower: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yaml").write_text("name: north\ndata: recipe\n")
    words = ["deploy", "health", str(tmp_path), "--flower"]
    assert call([*words, flower, "--ready"]) == 0
    assert capsys.readouterr().out == "ready\n"
    assert call([*words, "http://127.0.0.1:1"]) == 1
    assert "Flower's process does not answer at http://127.0.0.1:1" in capsys.readouterr().err
    assert call([*words, "https://127.0.0.1:1"]) == 1
    assert "ca.crt is not there: copy it" in capsys.readouterr().err
    monkeypatch.setattr(health, "FREE_BYTES", 2**80)  # a full disk: restarting the process would not help
    assert call([*words, flower]) == 0
    assert call([*words, flower, "--ready"]) == 1
    assert "free space: make room" in capsys.readouterr().err
    assert call(["deploy", "health", str(tmp_path / "elsewhere")]) == 2
    assert "has neither server.yaml nor site.yaml" in capsys.readouterr().err


def test_it_loads_neither_torch_nor_flower() -> None:
    code = "import sys, fedhead.deploy.health; print({'torch', 'flwr', 'numpy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
