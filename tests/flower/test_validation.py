"""Model selection at sites: validation, early stopping and the best model give the numbers that simulation gives."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulations import make_simulation, make_world, run
from small import federation, network
from small_sites import changed_response
from tiers import quick

import fedhead as fh
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.data.federation.federation import Federation
from fedhead.deploy.project import Project
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import InputSpec
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.engine.rounds.simulation import Simulation
from fedhead.flower import factory
from fedhead.flower.server.transport import FlowerTransport
from fedhead.flower.server_run import serve
from fedhead.flower.site.policy import Policy
from fedhead.flower.site.site_store import SiteStore
from fedhead.methods import METHODS
from fedhead.metrics.records import Row
from fedhead.metrics.registry import find
from fedhead.recipes.experiment import build_experiment
from fedhead.runs.run import execute
from fedhead.stages import STAGES
from fedhead.testing.inprocess import InProcess, InProcessFederation

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.1, momentum=0.9))
SETTINGS: dict[str, Any] = {"rounds": 8, "local": LOCAL, "participation": 0.6, "validation": 0.3}
METRICS = ["f1", "matthews_corrcoef", "nll", "brier", "topk(k=2)", "ece(bins=5)", "auroc(bins=64)", "worst_client"]


def held_out() -> Federation:
    """The small federation with validation samples: none at the sites 2 (without data) and 4 (with 3 samples)."""
    made = federation().with_validation(SETTINGS["validation"])
    assert [len(rows) for rows in made.validation or []] == [2, 1, 0, 4, 0]
    return made


def same(a: Tree, b: Tree) -> None:
    left, right = a.leaves(), b.leaves()
    assert left.keys() == right.keys()
    for name, t in left.items():
        torch.testing.assert_close(t, right[name], atol=1e-10, rtol=1e-10)


def worlds(
    name: str, folder: Path, stages: list[Stage] | None = None, metrics: list[str] = METRICS
) -> tuple[InProcessFederation, Simulation]:
    model, method, fed = network("batch", METHODS[name].head), METHODS[name](), held_out()
    made = make_world(fed, {"own": model}, method, SETTINGS, folder, stages or [], metrics=metrics, dtype=torch.float64)
    return made, make_simulation(fed, [model], method, dtype=torch.float64, **SETTINGS)


def both(
    name: str, folder: Path, callbacks: list[fh.Callback], stages: list[Stage]
) -> tuple[FinishedRun, FlowerTransport, FinishedRun, Simulation]:
    world, simulation = worlds(name, folder, stages)
    transport, changes = world.transport(world.grid()), {"callbacks": callbacks, "metrics": find(METRICS)}
    return run(transport, stages, **changes), transport, run(simulation, stages, **changes), simulation


def equal(mine: Any, theirs: Any) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return (math.isnan(mine) and math.isnan(theirs)) or mine == pytest.approx(theirs, abs=1e-10)


@pytest.mark.parametrize("name", quick(sorted(METHODS), "fedavg"))
def test_validation_early_stopping_best_model_and_a_stage_equal_a_simulations(name: str, tmp_path: Path) -> None:
    callbacks: list[fh.Callback] = [fh.EarlyStopping("f1", patience=2), fh.BestModel("f1")]
    stages = [STAGES["finetune"]()]
    found, transport, expected, simulation = both(name, tmp_path, callbacks, stages)
    assert len(found.rows) == len(expected.rows)
    assert found.best_round == expected.best_round is not None
    if name in ("fedavg", "fedrep"):  # so that neither the stop nor the choice is trivial
        assert 1 < found.best_round < len(found.rows) - 1 < SETTINGS["rounds"] - 1
    for mine, theirs in zip(found.rows, expected.rows, strict=True):
        assert mine["validation"].keys() == theirs["validation"].keys()
        for entry, value in theirs["validation"].items():
            assert equal(mine["validation"][entry], value), entry
        assert mine.get("stopped") == theirs.get("stopped")
    same(simulation.server, transport.server)
    for k, state in simulation.states.kept.items():
        stored = SiteStore(tmp_path / "state", transport.spec.experiment, f"site-{k}").load(
            f"state-{transport.states[k]}"
        )
        assert stored is not None
        same(state, stored)
    for stage in stages:
        same(expected.stages[stage.name].server, found.stages[stage.name].server)
        assert found.stages[stage.name].personal == pytest.approx(expected.stages[stage.name].personal, abs=1e-10)


def test_the_final_models_at_the_sites_are_those_of_the_best_round(tmp_path: Path) -> None:
    found, transport, expected, simulation = both("fedrep", tmp_path, [fh.BestModel("f1")], [])
    assert found.best_round == expected.best_round is not None
    assert found.best_round < SETTINGS["rounds"]
    for k in transport.present():
        delivered = SiteStore(tmp_path / "state", transport.spec.experiment, f"site-{k}").load("model-train")
        assert delivered is not None
        method = simulation.experiment.method
        (job,) = simulation.jobs(method, simulation.server, simulation.states, [k], found.best_round)
        personal = method.personal_model(job.program.client(job.inputs(0)))
        same(personal, delivered)


# -- what a site reports ------------------------------------------------------------------------------
def test_a_site_may_keep_its_metrics_for_itself_and_small_classes_are_left_out(tmp_path: Path) -> None:
    world, _ = worlds("fedavg", tmp_path, metrics=["f1"])
    grid, said, seen = world.grid(), list[str](), dict[int, Any]()
    grid.nodes[101] = dataclasses.replace(grid.nodes[101], policy=Policy(report_metrics=False))
    grid.nodes[103] = dataclasses.replace(grid.nodes[103], policy=Policy(min_class_count=3))

    def watched(k: int) -> Any:
        return lambda message, honest: changed_response(
            honest(), lambda header, trees: seen.update({k: (header, trees)}) if header["correct"] is not None else None
        )

    grid.faults = {100 + k: watched(k) for k in range(5)}
    row = run(world.transport(grid, said), rounds=2, metrics=find(["f1"])).rows[-1]["validation"]
    assert seen.keys() == {0, 1, 3}
    assert "sums" not in seen[1][1]
    y = held_out().train.y[held_out().validation[3]]  # type: ignore[index]
    small = [c for c in y.unique().tolist() if int((y == c).sum()) < 3]
    assert seen[3][0]["left_out"] == small
    confusion = seen[3][1]["sums"]["confusion"]
    assert confusion.sum() == len(y) - sum(int((y == c).sum()) for c in small)
    total = confusion + seen[0][1]["sums"]["confusion"]
    assert row["f1"] == pytest.approx(find(["f1"])["f1"].function(total.numpy()))
    assert len([line for line in said if "site site-3 leaves classes" in line and "min_class_count" in line]) == 1
    correct = sum(header["correct"] for header, _ in seen.values())
    assert row["accuracy"] == pytest.approx(100 * correct / 7)  # of all sites


def test_impossible_counts_are_refused(tmp_path: Path) -> None:
    world, _ = worlds("fedavg", tmp_path, metrics=["f1"])
    grid, said = world.grid(), list[str]()

    def lie(header: dict[str, Any], trees: dict[str, Any]) -> None:
        header["correct"] = None if header["correct"] is None else 5

    grid.faults[103] = lambda message, honest: changed_response(honest(), lie)
    run(world.transport(grid, said), rounds=1)
    assert any("site-3 was not tested: it reports more correct predictions than validation" in line for line in said)


def test_a_round_without_a_quorum_of_results_has_no_value(tmp_path: Path) -> None:
    world, _ = worlds("fedavg", tmp_path, metrics=[])
    for quorum, validated in ((4, False), (3, True)):
        grid = world.grid()
        grid.faults[103] = lambda message, honest: (
            None if message.metadata.message_type == "evaluate.test" else honest()
        )
        transport = world.transport(grid, quorum=quorum, round_seconds=0.1)
        rows = run(transport, rounds=1, participation=1.0, callbacks=[fh.BestModel("loss")]).rows
        assert ("validation" in rows[0]) is validated


def test_what_can_t_be_validated_is_refused_before_the_first_round(tmp_path: Path) -> None:
    world, _ = worlds("fedavg", tmp_path, metrics=["f1"])
    metrics = find(["f1", lambda confusion: 1.0])
    with pytest.raises(BadInput, match=r"best_model watches lambda, which is no sum over samples: watch one of .*, f1"):
        run(world.transport(InProcess({})), metrics=metrics, callbacks=[fh.BestModel("lambda", mode="max")])
    empty = [rows[:0] for rows in world.federation.indices]
    world.federation = dataclasses.replace(world.federation, validation=empty)
    with pytest.raises(FedheadError, match="no site has validation samples; set 'validation' in site"):
        run(world.transport(world.grid()), callbacks=[fh.BestModel()])


def test_a_callback_whose_metric_never_had_a_value_is_named(tmp_path: Path) -> None:
    world, _ = worlds("fedavg", tmp_path, metrics=["auroc"])
    grid, said = world.grid(), list[str]()
    grid.nodes = {n: dataclasses.replace(site, policy=Policy(min_class_count=9)) for n, site in grid.nodes.items()}
    found = run(world.transport(grid, said), rounds=1, metrics=find(["auroc"]), callbacks=[fh.BestModel("auroc")])
    assert found.best_round is None
    assert "callback best_model had no effect: auroc had no value in any round" in said


# -- from files ---------------------------------------------------------------------------------------
WORDS = ["subset=160", "rounds=4", "local_epochs=1", "partition=dirichlet(1.0)", "batch_size=16", "lr=0.3"]
CHOICE = ["client_test=0.2", "validation=0.2", "method=fedrep", "callbacks=[best_model(metric=personal, min_delta=20)]"]


def deployment(folder: Path, *words: str) -> tuple[Project, InProcess]:
    made = Project.init(folder, "digits", ["a", "b", "c"], [*WORDS, *words])
    made.server_file.write_text(made.server_file.read_text().replace("join_seconds: 120", "join_seconds: 0.3"))
    return made, InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})


def test_a_resumed_server_still_has_the_best_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, grid = deployment(tmp_path / "demo", *CHOICE, "stages=[finetune]")
    recipe, compute = made.server().recipe_of_run(), Compute(executor="loop", device="cpu", threads=1)
    expected = execute(recipe, tmp_path / "sim", compute)
    best = expected["best_round"]
    assert best is not None
    assert best < 3
    honest = rounds.train_round

    def stopped(transport: FlowerTransport, number: int, **settings: bool) -> Row:
        return honest(transport, number, **settings) if number < 4 else 1 / 0  # type: ignore[return-value]  # raises

    monkeypatch.setattr(rounds, "train_round", stopped)
    with pytest.raises(ZeroDivisionError):
        serve(made.server(), grid, log=lambda line: None)
    monkeypatch.undo()
    found = serve(made.server(), grid, resume=True, log=lambda line: None)
    assert found["best_round"] == best
    for name in ("personal", "clients"):
        assert found[name] == pytest.approx(expected[name], abs=1e-6)
    assert found["stages"]["finetune"]["clients"] == pytest.approx(expected["stages"]["finetune"]["clients"], abs=1e-6)
    rows = [
        [json.loads(line)["validation"] for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (made.path / "run", tmp_path / "sim")
    ]
    assert rows[0] == [pytest.approx(row, abs=1e-6) for row in rows[1]]


def own_tables(folder: Path, keys: str, *words: str) -> tuple[Project, InProcess, Federation]:
    """Two sites with tables of their own, and their federation as a simulation has it; the second lacks class 2."""
    rng = np.random.RandomState(0)
    x, y = rng.randn(70, 5).astype(np.float32), np.r_[np.arange(40) % 3, np.arange(30) % 2]
    x[np.arange(70), y] += 2
    folder.mkdir()
    np.savez(folder / "north.npz", x=x[:40], y=y[:40])
    np.savez(folder / "south.npz", x=x[40:], y=y[40:])
    paths = [str(folder / "north.npz"), str(folder / "south.npz")]
    changes = ["rounds=3", "local_epochs=1", "model=mlp(hidden=[4])", *words]
    made = Project.init(folder / "own", "digits", ["north", "south"], changes, data=paths)
    text = made.server_file.read_text().replace("join_seconds: 120", "join_seconds: 0.3")
    made.server_file.write_text(text + "classes: 3\nshape: [5]\n")
    for file in made.sites().values():
        with file.path.open("a") as yaml:
            yaml.write(keys)
    grid = InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})
    return made, grid, Federation.from_clients([(x[:40], y[:40]), (x[40:], y[40:])], classes=3)


def test_sites_hold_out_validation_samples_of_their_own_data(tmp_path: Path) -> None:
    keys = "client_test: 0.2\nvalidation: 0.25\nmin_class_count: 1\n"
    words = ("validation=0.25", "metrics=[f1, 'auroc(bins=100)']", "callbacks=[best_model(metric=auroc(bins=100))]")
    made, grid, whole = own_tables(tmp_path / "data", keys, *words)
    serve(made.server(), grid, log=lambda line: None)
    recipe = made.server().recipe_of_run()
    split = whole.with_client_test(0.2, recipe.seed).with_validation(0.25, recipe.seed)
    experiment = build_experiment(recipe, InputSpec.of(split))
    expected = rounds.run(Simulation(experiment, split, Compute(device="cpu", executor="loop")))
    found = [json.loads(line) for line in (made.path / "run" / "metrics.jsonl").read_text().splitlines()]
    for mine, theirs in zip(found, expected.rows, strict=True):
        assert mine["validation"] == pytest.approx(theirs["validation"], abs=1e-5)
        assert not math.isnan(mine["validation"]["auroc(bins=100)"])  # although one site lacks a class
    assert fh.load(made.path / "run").best_round == expected.best_round


def test_a_regression_is_validated_by_sums(tmp_path: Path) -> None:
    rng = np.random.RandomState(0)
    x = rng.randn(60, 5).astype(np.float32)
    y = x @ rng.randn(5, 1).astype(np.float32)
    words = ("objective=regression", "validation=0.25", "metrics=[mae, r2]", "callbacks=[best_model(metric=mae)]")
    paths = [str(tmp_path / f"{name}.npz") for name in ("north", "south")]
    for path, rows in zip(paths, (slice(0, 35), slice(35, 60)), strict=True):
        np.savez(path, x=x[rows], y=y[rows])
    changes = ["rounds=3", "local_epochs=1", "lr=0.01", "model=mlp(hidden=[4])", *words]
    made = Project.init(tmp_path / "own", "digits", ["north", "south"], changes, data=paths)
    made.server_file.write_text(made.server_file.read_text() + "classes: 1\nshape: [5]\n")
    for file in made.sites().values():
        file.path.write_text(file.path.read_text() + "client_test: 0.2\nvalidation: 0.25\n")
    grid = InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})
    serve(made.server(), grid, log=lambda line: None)
    recipe = made.server().recipe_of_run()
    whole = Federation.from_clients([(x[:35], y[:35]), (x[35:], y[35:])], objective="regression")
    split = whole.with_client_test(0.2, recipe.seed).with_validation(0.25, recipe.seed)
    simulation = Simulation(
        build_experiment(recipe, InputSpec.of(split)), split, Compute(device="cpu", executor="loop")
    )
    expected = rounds.run(simulation).rows
    found = [json.loads(line) for line in (made.path / "run" / "metrics.jsonl").read_text().splitlines()]
    for mine, theirs in zip(found, expected, strict=True):
        for entry in ("loss", "mae", "personal_loss"):  # r2 is no sum
            assert mine["validation"][entry] == pytest.approx(theirs["validation"][entry], abs=1e-6)
        assert mine["client_metrics"]["r2"] == pytest.approx(theirs["client_metrics"]["r2"], abs=1e-5)


def test_a_site_decides_about_its_validation_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, grid, _ = own_tables(tmp_path / "data", "validation: 0.1\n", "validation=0.25", "callbacks=[best_model]")
    with pytest.raises(FedheadError, match="0 of 2 sites are there"):
        serve(made.server(), grid, log=lambda line: None)
    assert "the recipe's validation is 0.25, this site's is 0.1: each site decides" in capsys.readouterr().err
