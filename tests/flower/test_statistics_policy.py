"""Statistics under a site's policy: a server that varies its requests learns no sample."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhead.core.system.errors import BadInput
from fedhead.deploy.project import Project
from fedhead.engine.clients.server import make_downlink
from fedhead.flower import factory
from fedhead.flower.config import ServerFile, SiteFile
from fedhead.flower.ledger import Ledger
from fedhead.flower.server.dry_run import DryRun
from fedhead.flower.server_run import serve
from fedhead.flower.site.client_handler import respond
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import Request, Response, RunSpec, exchanges, read_response, to_json
from fedhead.testing.inprocess import InProcess, through_bytes

SAMPLES = np.random.RandomState(0).randn(60, 6).astype(np.float32)
SERVER = "recipe: digits\nsites: [north, south]\nclasses: 3\nshape: [6]\nset: [rounds=0, 'stages=[ridge, ncm]']\n"


class Server:
    """A server that asks one site for whatever it likes."""

    def __init__(self, folder: Path, keys: str = "", hidden: str = "4"):
        np.savez(folder / "own.npz", x=SAMPLES, y=np.arange(60) % 3)
        self.site_file, self.hidden = folder / "site.yaml", hidden
        self.site_file.write_text(f"name: north\ndata: own.npz\n{keys}")
        (folder / "server.yaml").write_text(SERVER)
        self.file = ServerFile.read(folder / "server.yaml")
        self.spec = self.new_run()

    def new_run(self, **keys: Any) -> RunSpec:
        spec = factory.run_spec(self.file)
        spec.recipe.update({"model.hidden": [int(width) for width in self.hidden.split()], **keys})
        return spec

    def ask(
        self, spec: RunSpec, stage: str = "ridge", kind: Any = "work", shift: float = 0.0, accepted: int = 0
    ) -> tuple[Response, Any]:
        """Return the site's response and tensors; `shift` changes the weights."""
        experiment = factory.experiment_of(spec.recipe_of_run(), spec)
        clients = DryRun(spec, experiment, lambda own: experiment.models).clients
        server = experiment.method.init_server(clients.initial[0] + shift, clients.task)
        algorithm = exchanges(experiment.method, experiment.stages)[stage]
        down = make_downlink(algorithm, server, [0], clients.task_of)
        request = Request(kind, spec, 60.0, round=1 + accepted, algorithm=stage, accepted=accepted)
        trees = {"broadcast": down.broadcast, "per_client": down.per_client[0]}
        content = through_bytes(wire.pack(to_json(request), {} if kind == "hello" else trees))
        site = factory.site_of(str(self.site_file))  # a new process for every request
        header, received = wire.unpack(through_bytes(respond(content, site, watchdog=False)))
        return read_response(header), received

    def problems(self, *requests: tuple[RunSpec, str, float]) -> list[str | None]:
        return [self.ask(spec, stage, shift=shift)[0].problem for spec, stage, shift in requests]


def recovered(sums: list[torch.Tensor]) -> int:
    """Count the samples that are differences of two sums over almost the same rows."""
    differences = [a - b for a, b in pairwise(sums)]
    rows = [row for difference in differences for row in difference if row[0] == 1]
    return sum(bool((np.abs(SAMPLES - row[1:].numpy()).max(1) < 1e-4).any()) for row in rows)


def attack(server: Server, shares: list[float]) -> int:
    """Ask for statistics of the inputs with one training sample less each time."""
    sums = []
    for share in shares:
        response, trees = server.ask(server.new_run(client_test=share))
        if response.problem is None:
            statistics = trees["send"]["statistics"]
            sums.append(torch.cat([statistics["count"][:, None], statistics["sum"]], 1))
    return recovered(sums)


def test_a_server_that_varies_the_rows_learns_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [(k + 10.5) / 60 for k in range(12)]
    assert attack(Server(tmp_path, hidden=""), shares) == 0
    with monkeypatch.context() as patch:  # without the policy and with rows by the recipe, 12 requests give 11 samples
        patch.setattr(SiteFile, "check_held_out", lambda self, recipe: replaced.append(recipe.client_test))
        replaced: list[Any] = []
        original = factory.own_data.federation
        patch.setattr(
            factory.own_data,
            "federation",
            lambda *words, **keys: original(*words, **{**keys, "client_test": replaced[-1]}),
        )
        assert attack(Server(tmp_path, "allow_wide_features: true\n", hidden=""), shares) == 2  # from three releases
        assert attack(Server(tmp_path, "allow_wide_features: true\nmax_releases: null\n", hidden=""), shares) == 11


def test_a_recipe_that_asks_for_other_rows_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path)
    assert server.ask(server.new_run(client_test=0.2), kind="hello")[0].problem == "policy"
    assert "the recipe's client_test is 0.2, this site's is None: each site decides" in capsys.readouterr().err
    server = Server(tmp_path, "client_test: 0.2\n")
    for spec in (server.new_run(client_test=0.2), server.new_run()):
        response = server.ask(spec, kind="hello")[0]
        assert (response.problem, response.samples, response.tests) == (None, 48, 12)


def test_rows_are_drawn_once(tmp_path: Path) -> None:
    """The first run's seed and position draw them, as a simulation does; no later run draws others."""
    server = Server(tmp_path, "client_test: 0.2\nmax_releases: null\n")

    def count(spec: RunSpec) -> Any:
        return server.ask(spec)[1]["send"]["statistics"]["count"].tolist()

    whole = factory.own_data.federation(server.spec, 0, "own.npz", base=tmp_path)
    simulated = whole.with_client_test(0.2, seed=0)
    expected = np.bincount(simulated.train.y[torch.from_numpy(simulated.indices[0])], minlength=3).tolist()
    assert count(server.spec) == expected
    others = [server.new_run(seed=seed) for seed in range(1, 5)]
    moved = replace(server.new_run(), sites=["south", "east", "north"])
    drawn = {tuple(whole.with_client_test(0.2, seed=seed).indices[0]) for seed in range(5)}
    assert len(drawn) == 5
    assert all(count(spec) == expected for spec in [*others, moved])


def test_other_classes_draw_no_other_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The draw of a share depends on the numbers of the classes, which the server gives."""
    server = Server(tmp_path, "client_test: stratified(0.17)\n")
    mistaken = replace(server.new_run(), classes=2)
    assert server.ask(mistaken, kind="hello")[0].problem == "data"  # its classes are not kept
    assert server.ask(server.spec)[0].problem is None
    assert server.ask(replace(server.new_run(), class_names=["0", "1", "2"]))[0].problem is None
    for other in (
        replace(server.new_run(), class_names=["1", "2", "0"]),
        replace(server.new_run(rounds=1, stages=[], objective="regression"), classes=1),
    ):
        assert server.ask(other, "train")[0].problem == "policy"
        assert "differ from those of this site's first run, and would draw other samples" in capsys.readouterr().err
    (tmp_path / "state" / "draw-north.json").write_text("[0, 0]")
    assert server.ask(server.spec)[0].problem == "state"


def test_statistics_from_another_state_are_another_release(tmp_path: Path) -> None:
    server = Server(tmp_path, "max_releases: 1\n")
    spec = server.new_run(method="fedclassavg", rounds=3, stages=["ncm"])
    for shift, problem in ((0.0, None), (0.5, "budget")):  # round 1 again, with another classifier: another extractor
        assert server.ask(spec, "train", shift=shift)[0].problem is None
        assert server.ask(spec, "ncm", accepted=1)[0].problem == problem


def test_other_weights_and_other_runs_count_as_releases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path)
    spec, other = server.spec, server.new_run(seed=1)
    # All stages of a run on the same weights are one release, and so is a request that is repeated after a resume.
    assert server.problems((spec, "ridge", 0.0), (spec, "ncm", 0.0), (spec, "ridge", 0.0)) == [None] * 3
    assert server.problems((spec, "ridge", 0.1), (other, "ridge", 0.0)) == [None] * 2
    assert server.problems((spec, "ncm", 0.2), (other, "ridge", 0.3)) == ["budget"] * 2
    told = capsys.readouterr().err
    assert "statistics of this site's samples were sent 3 times, 'max_releases' in site.yaml permits 3" in told
    assert server.problems((spec, "ridge", 0.0), (other, "ncm", 0.0)) == [None] * 2  # sent before
    assert server.ask(server.new_run(), kind="hello")[0].problem == "budget"  # before any round, not after the last
    assert server.ask(spec, kind="hello")[0].problem is None
    decisions = [entry["decision"] for entry in Ledger(tmp_path / "state" / "ledger.jsonl").entries()]
    assert decisions.count("refused: budget") == 3
    server.site_file.write_text(server.site_file.read_text() + "max_releases: 4\n")
    assert server.problems((spec, "ncm", 0.2), (spec, "ncm", 0.4)) == [None, "budget"]


def test_all_stages_of_a_run_are_one_release(tmp_path: Path) -> None:
    """Stages that begin with another stage count once too, though `finetune_ccvr` and `ccvr` ask for different sums."""
    stages = ["ncm", "ridge", "qda", "ccvr", "personal_lda", "finetune_ccvr"]
    words = ["subset=300", "partition=iid", "rounds=1", f"stages=[{', '.join(stages)}]", "client_test=0.2"]
    words += ["model.hidden=[16]", "stage.ccvr.epochs=1", "stage.ccvr.samples=5", "stage.finetune_ccvr.epochs=1"]
    made = Project.init(tmp_path / "demo", "digits", ["north", "south"], words)
    sites = {10 + k: factory.site(replace(file, max_releases=1)) for k, file in enumerate(made.sites().values())}
    result = serve(made.server(), InProcess(sites), log=lambda line: None)
    assert list(result["stages"]) == stages
    entries = list(Ledger.find(made.path / "sites" / "north").entries())
    released = [entry["algorithm"] for entry in entries if "release" in entry]
    assert released == ["ncm", "ridge", "qda", "ccvr", "personal_lda.lda", "finetune_ccvr.ccvr"]
    assert len({entry["release"] for entry in entries if "release" in entry}) == 1


def test_changed_samples_count_as_another_release(tmp_path: Path) -> None:
    server = Server(tmp_path, "max_releases: 1\n")
    assert server.problems((server.spec, "ridge", 0.0), (server.spec, "ridge", 0.0)) == [None, None]
    np.savez(tmp_path / "own.npz", x=SAMPLES[1:], y=np.arange(1, 60) % 3)
    assert server.problems((server.spec, "ridge", 0.0)) == ["budget"]


@pytest.mark.parametrize(("hidden", "problem"), [("", "policy"), ("6", "policy"), ("9 5", None), ("5", None)])
def test_statistics_of_as_many_features_as_values_are_refused(
    hidden: str, problem: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(tmp_path, hidden=hidden)
    assert server.ask(server.spec, kind="hello")[0].problem == problem
    if problem:
        assert "stage ridge: the model has 6 features and a sample 6 values" in capsys.readouterr().err
        assert server.ask(server.new_run(stages=[], rounds=1), "train", kind="hello")[0].problem is None
        assert Server(tmp_path, "allow_wide_features: true\n", hidden).ask(server.spec)[0].problem is None


def test_only_public_data_is_deployed_without_these_limits(tmp_path: Path) -> None:
    own = tmp_path / "own.npz"
    np.savez(own, x=SAMPLES, y=np.arange(60) % 3)
    public = Project.init(tmp_path / "a", "digits", ["north"]).sites()["north"]
    private = Project.init(tmp_path / "b", "digits", ["north"], [f"dataset={own}"]).sites()["north"]
    also_private = Project.init(tmp_path / "c", "digits", ["north"], data=[str(own)]).sites()["north"]
    assert (public.max_releases, public.allow_wide_features) == (None, True)
    assert (private.max_releases, private.allow_wide_features) == (3, False)
    assert (also_private.max_releases, also_private.allow_wide_features) == (3, False)
    (tmp_path / "site.yaml").write_text("name: a\ndata: x\nmax_releases: -1\n")
    with pytest.raises(BadInput, match="max_releases: -1 is out of range"):
        SiteFile.read(tmp_path / "site.yaml")
