"""Ledgers: every request is recorded at the site and at the server, alike, before anything leaves the site."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from simulations import make_world, run
from small import federation, network
from small_sites import SETTINGS

from fedhead.cli import call
from fedhead.deploy.project import Project
from fedhead.engine.rounds.observer import Snapshot
from fedhead.flower import factory, ledger
from fedhead.flower.ledger import Ledger
from fedhead.flower.server_run import serve
from fedhead.flower.site.client_handler import respond
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import Request, to_json
from fedhead.methods import METHODS
from fedhead.testing.inprocess import InProcess, through_bytes

WORDS = ["subset=120", "rounds=2", "stages=[ccvr]", "stage.ccvr.samples=5", "stage.ccvr.epochs=1", "client_test=0.2"]


def entries(path: Path) -> list[dict[str, Any]]:
    return list(Ledger.find(path).entries())


def test_the_servers_ledger_is_the_counterpart_of_the_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Project.init(tmp_path / "demo", "digits", ["north", "south"], WORDS)
    nodes = {10 + k: factory.site(file) for k, file in enumerate(made.sites().values())}
    serve(made.server(), InProcess(nodes), log=lambda line: None)
    recorded = entries(made.path / "run")
    for name in ("north", "south"):
        own = entries(made.path / "sites" / name)
        counterpart = [entry for entry in recorded if entry["site"] == name]
        exchanges = [(entry["kind"], entry["algorithm"], entry["round"]) for entry in own]
        assert exchanges[:3] == [("hello", "train", 0), ("work", "train", 1), ("test", "train", 1)]
        assert ("work", "ccvr", 3) in exchanges
        for mine, theirs in zip(own, counterpart, strict=True):
            assert (mine.pop("decision"), theirs.pop("decision")) == ("sent", "received")
            for odd in ("time", "server", "node", "release"):
                mine.pop(odd, None), theirs.pop(odd, None)
            assert mine == theirs
            assert mine["recipe"]["method"] == "fedavg"
            if mine["kind"] == "work":
                assert mine["numbers"]["samples"] > 0
                assert mine["sent"]["send"]["bytes"] > 0
                assert mine["asked"]["broadcast"]["tensors"]["model/classifier.bias"] == [10]
    capsys.readouterr()
    assert call(["ledger", str(made.path / "sites" / "north")]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1 + len(entries(made.path / "sites" / "north"))
    assert "work ccvr" in out
    north = made.path / "sites" / "north"
    compare = ["ledger", str(north), "--server", str(made.path / "run")]
    assert call(compare) == 0
    own = entries(north)
    assert capsys.readouterr().out == f"{len(own)} replies are recorded alike by the site and the server\n"
    (north / "state" / "ledger.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in own[:-1]))
    assert call(compare) == 1
    told = capsys.readouterr()
    assert told.out.startswith(f"{len(own) - 1} replies are recorded alike")
    assert "received" in told.out.splitlines()[-1]  # the reply that the site has not recorded
    assert "missing or different on the other side" in told.err
    changed = [*own[:-1], own[-1] | {"numbers": {}}]
    (north / "state" / "ledger.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in changed))
    assert call(compare) == 1
    *_, at_site, at_server = capsys.readouterr().out.splitlines()
    assert "sent" in at_site
    assert "received" in at_server
    twice = "".join(json.dumps(entry) + "\n" for entry in [*own, own[-1]])
    (north / "state" / "ledger.jsonl").write_text(twice)  # sent twice, received once
    assert call(compare) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"{len(own)} replies are recorded alike")
    assert [" sent " in line for line in told[2:]] == [True]
    (north / "state" / "ledger.jsonl").write_text("")
    assert call(compare) == 2
    assert "have no replies to compare: give the folder of a site" in capsys.readouterr().err
    assert call(["ledger", str(tmp_path)]) == 2
    assert "has no ledger.jsonl: give a site's folder" in capsys.readouterr().err


def test_refused_and_unreadable_requests_are_recorded(tmp_path: Path) -> None:
    made = Project.init(tmp_path / "demo", "digits", ["north"], WORDS)
    folder = made.path / "sites" / "north"
    with (folder / "site.yaml").open("a") as yaml:
        yaml.write("methods: [fedprox]\n")
    site, request = factory.site_of(str(folder / "site.yaml")), Request("hello", factory.run_spec(made.server()), 60.0)
    for header in (to_json(request), {"kind": "shell"}):
        respond(through_bytes(wire.pack(header, {})), site, watchdog=False, server="link:443 insecure")
    policy, unreadable = entries(folder)
    assert (policy["decision"], policy["kind"], policy["server"]) == ("refused: policy", "hello", "link:443 insecure")
    assert policy["reference"]
    assert unreadable["decision"] == "refused: version"
    assert "sent" not in policy


def test_with_a_full_disk_at_the_ledger_training_stops_there(tmp_path: Path) -> None:
    world = make_world(federation(), {"own": network("group")}, METHODS["scaffold"](), SETTINGS, tmp_path)
    grid, full = world.grid(), tmp_path / "site-1" / "ledger.jsonl"
    grid.nodes[101] = replace(grid.nodes[101], state=full.parent)

    def fill_disk(snapshot: Snapshot) -> None:
        if not full.is_symlink():
            full.rename(tmp_path / "before.jsonl")
            full.symlink_to("/dev/full")

    rows = run(world.transport(grid), on_round=fill_disk).rows
    assert "failed" not in rows[0]
    for row in rows[1:]:
        assert row["failed"].keys() == {"site-1"}
        assert "can't write its state or its ledger (disk, reference" in row["failed"]["site-1"]
    assert {entry["round"] for entry in entries(tmp_path / "before.jsonl") if entry["kind"] == "work"} == {1}


def test_lines_are_appended_whole_and_files_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Ledger(tmp_path / "state" / "ledger.jsonl")
    book.append({"a": 1}, {"a": 2})
    with book.path.open("a") as file:
        file.write('{"a": 3, "cut')  # the process was killed
    book.append({"a": 4})
    assert [entry["a"] for entry in book.entries()] == [1, 2, 4]
    before = book.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            book.append({"a": 5})
    assert book.path.read_bytes() == before
    monkeypatch.setattr(ledger, "ROTATE_BYTES", 10)
    book.append({"a": 6})
    book.append({"a": 7})
    names = sorted(path.name for path in book.path.parent.iterdir())
    assert names == ["ledger-0001.jsonl", "ledger-0002.jsonl", "ledger.jsonl"]
    assert [entry["a"] for entry in book.entries()] == [1, 2, 4, 6, 7]
    (book.path.parent / "ledger-0001.jsonl").unlink()  # archived elsewhere: no other file is overwritten
    book.append({"a": 8})
    assert [entry["a"] for entry in book.entries()] == [6, 7, 8]
    assert json.loads(book.path.read_text())["time"].endswith("+00:00")


NODE = """
import subprocess, sys
code = "import os; from fedhead.flower.site.server_identity import server_identity as f; print(f(os.getppid()))"
subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_the_server_is_the_link_and_the_authority_that_the_node_trusts(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"authority")
    expected = {
        (
            "--superlink",
            "link:443",
            "--root-certificates",
            "ca.crt",
        ): f"link:443 sha256:{sha256(b'authority').hexdigest()}",
        ("--superlink=link:443", "--insecure"): "link:443 insecure",
        ("--superlink=link:443",): "link:443 system authorities",
        (): "",
    }
    for words, identity in expected.items():
        node = [sys.executable, "-c", NODE, *words]
        found = subprocess.run(node, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert found.stdout.strip() == identity


def test_a_simulated_run_lists_what_would_have_left_the_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["subset=120", "rounds=2", "stages=[personal_ridge]", "client_test=0.2", "clients=3", "partition=iid"]
    assert call(["run", "digits", *words, "--out", str(tmp_path), "--quiet"]) == 0
    capsys.readouterr()
    assert call(["ledger", str(tmp_path)]) == 0
    _, *rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    up, down = f"{3 * 220840:,}", f"{3 * (220840 + 397736):,}"
    assert [row[:5] for row in cells[:2]] == [[str(n), "train", "model", "3", up] for n in (1, 2)]
    assert call(["run", "digits", *words, "privacy=[dp(epsilon=3)]", "--out", str(tmp_path / "dp"), "--quiet"]) == 0
    capsys.readouterr()
    assert call(["ledger", str(tmp_path / "dp")]) == 0
    assert capsys.readouterr().out.rstrip().endswith("3")
    sums = f"{3 * (80 + 16000 + 160800 + 8):,}"
    assert cells[2] == ["personal_ridge", "statistics, second_moment, architecture", "3", sums, down]
