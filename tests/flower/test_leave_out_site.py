"""Leave-one-site-out: the others train, and the site tests the global model, as in simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clinic_sites import project
from clinics import NAMES, clinic

import fedhead as fh
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.tree.treefile import load_tree
from fedhead.flower import factory
from fedhead.flower.ledger import Ledger
from fedhead.flower.server_run import serve
from fedhead.flower.wire.protocol import Request
from fedhead.flower.wire.site_errors import SiteProblem


def test_a_left_out_site_tests_as_in_simulation(tmp_path: Path) -> None:
    made, grid = project(tmp_path, "metrics=[f1]", "validation=0.25", "callbacks=[best_model]", "stages=[lda]")
    for file in made.sites().values():
        file.path.write_text(file.path.read_text() + "validation: 0.25\nallow_wide_features: true\n")
    grid.nodes = {10 + k: factory.site(file) for k, file in enumerate(made.sites().values())}
    serve(made.server().without("east"), grid, log=lambda line: None)
    found = fh.load(made.path / "run-without-east")
    frames = {name: clinic(k).drop(columns="patient") for k, name in enumerate(NAMES)}
    whole = fh.Federation.from_clients(
        frames, client_test=0.25, schema=tmp_path / "schema.yaml", missing="mean", normalize="standard"
    )
    expected = fh.run(
        whole.leave_out(2),
        "mlp(hidden=[6])",
        rounds=2,
        batch_size=8,
        lr=0.1,
        executor="loop",
        device="cpu",
        metrics=["f1"],
        stages=["lda"],
        validation=0.25,
        callbacks=[fh.BestModel()],
        out=tmp_path / "sim",
    )
    assert whole.client_test is not None
    tested = frames["east"].iloc[whole.client_test[2] - 80]  # the rows of the first two come before
    for stage, mine in ((None, found), ("lda", found.stages["lda"])):
        accuracy = expected.evaluate(tested, tested["outcome"], stage=stage)["accuracy"]
        assert mine.accuracy == pytest.approx(accuracy, abs=1e-10)
    assert found.metrics["f1"] > 0
    assert found.best_round == expected.best_round
    for mine, theirs in zip(found.rows, expected.rows, strict=True):
        assert mine["validation"]["loss"] == pytest.approx(theirs["validation"]["loss"], abs=1e-10)
        assert not mine.get("absent")
    here, there = (
        load_tree(folder / "checkpoint.safetensors")[0]["server"].leaves()
        for folder in (made.path / "run-without-east", tmp_path / "sim")
    )
    for name, t in there.items():
        torch.testing.assert_close(here[name], t, atol=1e-10, rtol=0)
    book = list(Ledger(made.path / "sites" / "east" / "state" / "ledger.jsonl").entries())
    assert {(entry["kind"], entry["decision"]) for entry in book} == {
        ("statistics", "refused: left-out"),
        ("hello", "sent"),
        ("test", "sent"),
    }
    assert {entry["numbers"]["tests"] for entry in book if entry["kind"] == "test"} == {10}


def test_what_can_t_be_left_out_is_refused(tmp_path: Path) -> None:
    made, grid = project(tmp_path, "method=fedrep")
    with pytest.raises(BadInput, match="leave_out_site: west is not among the sites north, south, east"):
        made.server().without("west")
    with pytest.raises(BadInput, match="leave_out_site: fedrep has no global model"):
        serve(made.server().without("east"), grid, log=lambda line: None)
    made.server_file.write_text(made.server_file.read_text().replace("quorum: 2", "quorum: 3"))
    with pytest.raises(BadInput, match="quorum: 3 is out of range, it must be at most the 2 sites that train"):
        made.server().without("east")


def test_a_left_out_site_needs_test_samples_of_its_own(tmp_path: Path) -> None:
    made, grid = project(tmp_path)
    file = made.path / "sites" / "east" / "site.yaml"
    file.write_text(file.read_text().replace("client_test: 0.25\n", ""))
    grid.nodes[12] = factory.site(made.sites()["east"])
    with pytest.raises(BadInput, match="leave_out_site: east has no test samples; set 'client_test' there"):
        serve(made.server().without("east"), grid, log=lambda line: None)


def test_a_run_without_its_tester_is_refused(tmp_path: Path) -> None:
    made, grid = project(tmp_path)
    file = made.path / "sites" / "east" / "site.yaml"
    file.write_text(file.read_text() + "methods: [fedprox]\n")
    grid.nodes[12] = factory.site(made.sites()["east"])
    with pytest.raises(FedheadError, match="east is not there to test the model: its site"):
        serve(made.server().without("east"), grid, log=lambda line: None)
    del grid.nodes[12]
    with pytest.raises(FedheadError, match="east is not there to test the model: it is not connected"):
        serve(replace(made.server(), out="other").without("east"), grid, log=lambda line: None)


def test_releases_run_out_before_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A repeated statistic of a table stays the first run's release, and each run's stage needs one more."""
    made, grid = project(tmp_path, "rounds=1", "stages=[ridge]")
    for file in made.sites().values():
        file.path.write_text(file.path.read_text() + "allow_wide_features: true\n")
    grid.nodes = {10 + k: factory.site(file) for k, file in enumerate(made.sites().values())}
    server = made.server()
    for file in (server, server.without("east")):
        assert serve(file, grid, log=lambda line: None)["stages"]["ridge"]
    with pytest.raises(FedheadError, match=r"1 of 3 sites are there after 0.1 s \(besides north, .* missing: south"):
        serve(server.without("north"), grid, log=lambda line: None)
    assert "were sent 3 times, 'max_releases' in site.yaml permits 3" in capsys.readouterr().err
    book = list(Ledger(made.path / "sites" / "south" / "state" / "ledger.jsonl").entries())
    assert [entry["kind"] for entry in book if entry["decision"] == "refused: budget"] == ["hello"]
    with pytest.raises(FedheadError, match=r"\(besides south, .* missing: north"):  # no release to test
        serve(replace(server, out="again").without("south"), grid, log=lambda line: None)


@pytest.mark.parametrize("kind", ["work", "model", "statistics"])
def test_a_left_out_site_answers_tests_only(kind: Any, tmp_path: Path) -> None:
    made, _ = project(tmp_path)
    spec = factory.run_spec(made.server().without("east"))
    with pytest.raises(SiteProblem, match="the run leaves east out of the training: it only tests") as refused:
        factory.site(made.sites()["east"]).handle(Request(kind, spec, 1.0), {})
    assert refused.value.code == "left-out"
