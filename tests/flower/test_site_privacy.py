"""Differential privacy at real sites: the site adds the noise, counts the budget and refuses what exceeds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.deploy.project import Project
from fedhead.engine.clients.server import make_downlink
from fedhead.flower import factory
from fedhead.flower.config import ServerFile
from fedhead.flower.ledger import Ledger
from fedhead.flower.server.dry_run import DryRun
from fedhead.flower.server_run import serve
from fedhead.flower.site.client_handler import respond
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import Request, RunSpec, exchanges, read_response, to_json
from fedhead.privacy import gaussian
from fedhead.testing.inprocess import InProcess, through_bytes

SAMPLES = np.random.RandomState(0).randn(60, 6).astype(np.float32)
SERVER = "recipe: digits\nsites: [north, south]\nclasses: 3\nshape: [6]\nset: [rounds=0, 'stages=[ridge, ncm]']\n"


class Server:
    """A server that asks one site for statistics."""

    def __init__(self, folder: Path, keys: str = ""):
        np.savez(folder / "own.npz", x=SAMPLES, y=np.arange(60) % 3)
        self.path = folder / "site.yaml"
        self.path.write_text(f"name: north\ndata: own.npz\nmax_releases: null\n{keys}")
        (folder / "server.yaml").write_text(SERVER)
        self.file, self.ledger = ServerFile.read(folder / "server.yaml"), Ledger(folder / "state" / "ledger.jsonl")

    def new_run(self, *privacy: str, **keys: Any) -> RunSpec:
        spec = factory.run_spec(self.file)
        spec.recipe.update({"model.hidden": [4], "privacy": list(privacy), **keys})
        return spec

    def ask(self, spec: RunSpec, stage: str = "ridge", kind: Any = "work") -> tuple[str | None, Mapping[str, Any]]:
        experiment = factory.experiment_of(spec.recipe_of_run(), spec)
        clients = DryRun(spec, experiment, lambda own: experiment.models).clients
        server = experiment.method.init_server(clients.initial[0], clients.task)
        down = make_downlink(exchanges(experiment.method, experiment.stages)[stage], server, [0], clients.task_of)
        trees = {"broadcast": down.broadcast, "per_client": down.per_client[0]}
        request = Request(kind, spec, 60.0, round=1, algorithm=stage)
        content = through_bytes(wire.pack(to_json(request), {} if kind == "hello" else trees))
        header, sent = wire.unpack(through_bytes(respond(content, factory.site_of(str(self.path)), watchdog=False)))
        return read_response(header).problem, sent


def test_statistics_leave_with_noise_and_the_ledger_has_the_budget(tmp_path: Path) -> None:
    server = Server(tmp_path)
    spec = server.new_run("dp(epsilon=2)")
    sent = [server.ask(spec, stage)[1]["send"]["statistics"] for stage in ("ridge", "ncm")]
    assert not any(bool((part["count"] == part["count"].round()).all()) for part in sent)
    spent = [entry["privacy"] for entry in server.ledger.entries()]
    assert gaussian.epsilon_of(1e-5, gaussian.compose(each["mu"] for each in spent)) == pytest.approx(2)
    exact = server.ask(server.new_run(), "ridge")[1]["send"]["statistics"]["count"]
    assert torch.equal(exact, torch.full((3,), 20.0, dtype=torch.float64))


def test_statistics_that_are_asked_for_twice_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path)
    spec = server.new_run("dp(epsilon=2)")
    assert [server.ask(spec, "ridge")[0] for _ in range(2)] == [None, "budget"]
    assert "statistics of ridge were sent before in this run" in capsys.readouterr().err


def test_private_rounds_of_a_changed_specification_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later specification with more noise would make the earlier rounds look more private than they were."""
    pytest.importorskip("dp_accounting")
    server = Server(tmp_path)
    spec = server.new_run("sample_dp(epsilon=1e9, noise_multiplier=0.5)", rounds=2, stages=[])
    quiet = {**spec.recipe, "privacy": ["sample_dp(epsilon=1e9, noise_multiplier=50)"]}
    assert [server.ask(s, "train")[0] for s in (spec, spec, replace(spec, recipe=quiet))] == [None, None, "budget"]
    assert "specification, or the number of this site's samples, changed" in capsys.readouterr().err
    np.savez(tmp_path / "own.npz", x=SAMPLES[1:], y=np.arange(1, 60) % 3)
    assert server.ask(spec, "train")[0] == "budget"


def test_a_budget_of_a_site_covers_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path, "max_epsilon: 2.5\n")
    first, second = server.new_run("dp(epsilon=2)"), server.new_run("dp(epsilon=2, delta=1e-6)")
    assert [server.ask(first, stage)[0] for stage in ("ridge", "ncm")] == [None, None]
    assert server.ask(second, kind="hello")[0] == "budget"  # before any round
    assert server.ask(second)[0] == "budget"
    told = capsys.readouterr().err
    assert "statistics of this site's samples would have ε = 2." in told
    assert "'max_epsilon' in site.yaml permits 2.5" in told
    assert server.ask(server.new_run("dp(epsilon=1)"), kind="hello")[0] is None
    assert call(["ledger", str(tmp_path)]) == 0
    assert "statistics with differential privacy: ε = 2 in all, at δ = 1e-05" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("privacy", "keys", "words"),
    [
        ((), {}, "the exchange ridge would send replies without noise"),
        (("client_dp(delta=1e-3)",), {"rounds": 1}, "the exchange train would send replies"),
        (("sample_dp",), {"rounds": 1}, "the exchange train would send replies"),
        (("dp",), {"rounds": 1}, "the exchange train would send replies without noise"),
        (("dp(epsilon=9)",), {}, "would have ε = 9 in all"),
    ],
)
def test_a_site_with_a_budget_refuses_others(
    privacy: tuple[str, ...], keys: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(tmp_path, "max_epsilon: 3\n")
    assert server.ask(server.new_run(*privacy, **keys), kind="hello")[0] == ("budget" if "ε" in words else "policy")
    assert words in capsys.readouterr().err
    assert not any(entry.get("sent") for entry in server.ledger.entries())


def test_a_site_refuses_rounds_that_the_run_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path, "max_epsilon: 1\n")
    assert server.ask(server.new_run("dp(epsilon=1)"), "train") == ("request", {})
    assert "round 1 of a run of 0 rounds" in capsys.readouterr().err


def test_a_site_refuses_a_list_with_its_name_twice(tmp_path: Path) -> None:
    server = Server(tmp_path)
    spec = replace(server.new_run("dp"), sites=["north", "south", "south"])
    content = through_bytes(wire.pack(to_json(Request("hello", spec, 60.0)), {}))
    header, _ = wire.unpack(through_bytes(respond(content, factory.site_of(str(server.path)), watchdog=False)))
    assert read_response(header).problem == "name"


def test_a_damaged_ledger_permits_no_release(tmp_path: Path) -> None:
    server = Server(tmp_path, "max_epsilon: 3\n")
    assert server.ask(server.new_run("dp(epsilon=2)"))[0] is None
    text = server.ledger.path.read_text()
    server.ledger.path.write_text(text.replace('"time"', '"time', 1))
    assert server.ask(server.new_run("dp(epsilon=2)"))[0] is not None
    with pytest.raises(BadInput, match="line 1 is damaged: restore the ledger"):
        list(server.ledger.entries())


def test_a_site_with_a_budget_keeps_its_model(tmp_path: Path) -> None:
    server = Server(tmp_path, "max_epsilon: 3\nshare_model: true\n")
    assert server.ask(server.new_run("dp(epsilon=2)"), kind="model")[0] == "consent"


def test_a_site_never_takes_its_noise_from_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path)
    assert server.ask(server.new_run("dp(test_seed=1)"), kind="hello")[0] == "policy"
    assert "from a seed that the server knows" in capsys.readouterr().err


def test_a_deployed_run_with_privacy(tmp_path: Path) -> None:
    stages = ["ridge", "personal_ridge"]
    words = ["subset=900", "partition=iid", "rounds=0", f"stages=[{', '.join(stages)}]", "client_test=0.2"]
    words += ["privacy=[dp(epsilon=30, center=private)]"]
    made = Project.init(tmp_path / "demo", "digits", ["north", "south"], words)
    sites = {10 + k: factory.site(replace(file, max_epsilon=30.1)) for k, file in enumerate(made.sites().values())}
    result = serve(made.server(), InProcess(sites), log=lambda line: None)
    assert all(result["stages"][stage]["accuracy"] > 60 for stage in stages)
    assert all(result["stages"][stage]["privacy"]["epsilon"] < 30 for stage in stages)
    entries = list(Ledger.find(made.path / "sites" / "north").entries())
    released = [entry["algorithm"] for entry in entries if entry.get("privacy")]
    assert released == ["ridge.center", "ridge", "personal_ridge.center", "personal_ridge.ridge"]
