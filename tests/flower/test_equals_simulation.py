"""The promise across machines: every method and stage gives the numbers that simulation gives."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from named import named_federation, named_model
from simulations import make_simulation, make_world, run
from small import federation, network
from small_sites import changed_response
from tiers import quick

from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import Clip, Float16Upload
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.engine.rounds.simulation import Simulation
from fedhead.flower.site.policy import Policy
from fedhead.flower.site.site_store import SiteStore
from fedhead.methods import METHODS
from fedhead.metrics.records import Row
from fedhead.metrics.registry import find
from fedhead.models.split_model import SplitModel
from fedhead.samplers import SAMPLERS
from fedhead.stages import STAGES
from fedhead.testing.inprocess import InProcess, InProcessFederation

ROUNDS = 3
LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9), lr_decay=0.9)
PERSONAL = ("personal", "clients")
SETTINGS = {"rounds": ROUNDS, "local": LOCAL, "participation": 0.6}


def model_for(name: str) -> SplitModel:
    return network("batch", METHODS[name].head)


def same(a: Tree, b: Tree, tolerance: float = 1e-6) -> None:
    left, right = a.leaves(), b.leaves()
    assert left.keys() == right.keys()
    for name, t in left.items():
        torch.testing.assert_close(t, right[name], atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def compare(world: InProcessFederation, simulation: Simulation, stages: list[Stage]) -> None:
    """Run both to the end and hold server, sites' states, metrics and stages against each other."""
    transport = world.transport(world.grid())
    found, expected = run(transport, stages=stages), run(simulation, stages=stages)
    # a site without samples says so; in a simulation such a client is no news
    assert [row.keys() - {"absent"} for row in found.rows] == [row.keys() - {"absent"} for row in expected.rows]
    for mine, theirs in zip(found.rows, expected.rows, strict=True):
        alike(mine, theirs, ("bytes_up", "bytes_down", "participants", "lr", "accuracy", "per_class", *PERSONAL))
    same(simulation.server, transport.server)
    for k, state in simulation.states.kept.items():
        store = SiteStore(world.folder / "state", world.identity, f"site-{k}")
        stored = store.load(f"state-{transport.states[k]}")
        assert stored is not None
        same(state, stored)
    assert found.stages.keys() == expected.stages.keys()
    for name, stage in expected.stages.items():
        same(stage.server, found.stages[name].server)
        names = ("bytes_up", "bytes_down", "participants", "accuracy", "per_class", *PERSONAL, "steps")
        alike(found.stages[name].metrics, stage.metrics, names)


def alike(mine: Row, theirs: Row, names: tuple[str, ...]) -> None:
    for name in names:
        wanted = theirs.get(name)
        assert mine.get(name) == (None if wanted is None else pytest.approx(wanted, abs=1e-6)), name


@pytest.mark.parametrize("name", quick(sorted(METHODS), "scaffold", "fedclassavg"))
def test_every_method(name: str, tmp_path: Path) -> None:
    model, method = model_for(name), METHODS[name]()
    world = make_world(federation(), {"own": model}, method, SETTINGS, tmp_path)
    compare(world, make_simulation(federation(), [model], method, **SETTINGS), [])


SMALL = {"samples": 20, "epochs": 2, "iterations": 2}  # in place of a paper's sizes, where a stage has such a field
ORACLES = {name for name, stage in STAGES.items() if stage.oracle}


@pytest.mark.parametrize("name", quick(sorted(STAGES.keys() - ORACLES), "finetune"))
def test_every_stage(name: str, tmp_path: Path) -> None:
    fields = {f.name for f in dataclasses.fields(STAGES[name])}
    stage = STAGES[name](**{word: value for word, value in SMALL.items() if word in fields})
    trained = "fedetf" if stage.head == "etf" else "fedavg"
    model, method = model_for(trained), METHODS[trained]()
    world = make_world(federation(), {"own": model}, method, SETTINGS, tmp_path, stages=[stage])
    compare(world, make_simulation(federation(), [model], method, **SETTINGS), [stage])
    delivered = sorted(path.name for path in (tmp_path / "state").rglob("model-*"))
    assert delivered == [f"model-{name}.safetensors"] * 4  # each site that holds data has its model


def test_an_oracle_is_refused_by_name_before_any_site_is_asked(tmp_path: Path) -> None:
    assert {"recalibrate"} == ORACLES
    stage = STAGES["recalibrate"]()
    world = make_world(
        federation(), {"own": model_for("fedavg")}, METHODS["fedavg"](), SETTINGS, tmp_path, stages=[stage]
    )
    with pytest.raises(BadInput, match="stage recalibrate needs all clients' data in one place"):
        run(world.transport(InProcess({})), stages=[stage])


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(["fedclassavg", "local", "fedproto", "ktpfl"], "fedproto"))
def test_two_architectures(name: str, tmp_path: Path) -> None:
    models, method = {"batch": network("batch"), "group": network("group")}, METHODS[name]()
    assign = [0, 1, 0, 1, 0]
    own = {k: "group" for k, group in enumerate(assign) if group}
    world = make_world(federation(), models, method, SETTINGS, tmp_path, own=own)
    compare(world, make_simulation(federation(), list(models.values()), method, assign=assign, **SETTINGS), [])


def test_two_architectures_calibrated_by_ccvr(tmp_path: Path) -> None:
    models, method = {"batch": network("batch"), "group": network("group")}, METHODS["fedclassavg"]()
    assign, stage = [0, 1, 0, 1, 0], STAGES["ccvr"](samples=20, epochs=1)
    own = {k: "group" for k, group in enumerate(assign) if group}
    world = make_world(federation(), models, method, SETTINGS, tmp_path, stages=[stage], own=own)
    compare(world, make_simulation(federation(), list(models.values()), method, assign=assign, **SETTINGS), [stage])


def test_an_optimizer_that_survives_the_round_survives_at_the_site(tmp_path: Path) -> None:
    settings = {**SETTINGS, "local": dataclasses.replace(LOCAL, persistent=True)}
    model, method = network("group"), METHODS["fedavg"]()
    world = make_world(federation(), {"own": model}, method, settings, tmp_path)
    compare(world, make_simulation(federation(), [model], method, **settings), [])


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(["fedavg", "scaffold", "fednh"], "fednh"))
def test_uploads(name: str, tmp_path: Path) -> None:
    model, method, stages = model_for(name), METHODS[name](), [STAGES["finetune"]()]
    if method.head is None:
        stages.append(STAGES["ccvr"](samples=20, epochs=1))
    settings = {**SETTINGS, "uploads": [Clip(0.1), Float16Upload()]}
    world = make_world(federation(), {"own": model}, method, settings, tmp_path, stages=stages)
    compare(world, make_simulation(federation(), [model], method, **settings), stages)


@pytest.mark.parametrize("sampler", quick(["weighted", "round_robin"], "weighted"))
def test_samplers_know_the_sizes_that_sites_report(sampler: str, tmp_path: Path) -> None:
    model, method, settings = network("group"), METHODS["fedavg"](), {**SETTINGS, "sampler": SAMPLERS[sampler]()}
    world = make_world(federation(), {"own": model}, method, settings, tmp_path)
    compare(world, make_simulation(federation(), [model], method, **settings), [])


@pytest.mark.parametrize(
    "stragglers", [Stragglers("drop", 0.4, seed=2), Stragglers("partial", 0.7)], ids=lambda one: one.policy
)
def test_different_amounts_of_work(stragglers: Stragglers, tmp_path: Path) -> None:
    local = dataclasses.replace(LOCAL, epochs=(1, 3, 1, 2, 4))
    model, method = network("group"), METHODS["scaffold"]()
    settings = {"rounds": ROUNDS, "local": local, "stragglers": stragglers}
    world = make_world(federation(), {"own": model}, method, settings, tmp_path)
    compare(world, make_simulation(federation(), [model], method, **settings), [])


def defined(values: Any) -> dict[int, float]:
    """The values that there are, by client; one number by itself."""
    listed = values if isinstance(values, list) else [values]
    return {k: value for k, value in enumerate(listed) if value is not None and not math.isnan(value)}


METRICS = ["f1", "auroc", "ece(bins=5)", "worst_client", "balanced_accuracy"]


def test_sites_report_the_runs_metrics(tmp_path: Path) -> None:
    model, method, metrics = network("group"), METHODS["fedavg"](), find(METRICS)
    world = make_world(federation(), {"own": model}, method, SETTINGS, tmp_path, metrics=METRICS)
    found = run(world.transport(world.grid()), metrics=metrics).rows[-1]
    expected = run(make_simulation(federation(), [model], method, **SETTINGS), metrics=metrics).rows[-1]
    for name in ("metrics", "personal_metrics", "client_metrics"):
        assert found[name].keys() == expected[name].keys()
        for one, value in expected[name].items():
            assert defined(found[name][one]) == pytest.approx(defined(value), abs=1e-6), (name, one)
    assert found["notes"].keys() == expected["notes"].keys() == {"client_metrics.auroc"}
    why = "it has no value for its test samples, or does not report it"  # no site says which class it lacks
    assert why in found["notes"]["client_metrics.auroc"]


def test_a_metric_that_sites_do_not_have_is_a_note_of_every_record(tmp_path: Path) -> None:
    world = make_world(federation(), {"own": network("group")}, METHODS["fedavg"](), SETTINGS, tmp_path)
    metrics = find(["f1", lambda confusion: float(confusion.sum())])
    world.metrics = ["f1"]
    for row in run(world.transport(world.grid()), metrics=metrics).rows:
        assert row["metrics"]["lambda"] == 20  # of the global model, at the server
        assert set(row["client_metrics"]) == {"f1"}
        assert row["notes"] == {"client_metrics.lambda": "not known: sites compute fedhead's own metrics only"}


def test_a_site_may_keep_its_metrics_for_itself_and_reports_none_unasked(tmp_path: Path) -> None:
    world = make_world(federation(), {"own": network("group")}, METHODS["fedavg"](), SETTINGS, tmp_path)
    world.metrics, said = ["f1"], list[str]()
    grid = world.grid()
    grid.nodes[101] = dataclasses.replace(grid.nodes[101], policy=Policy(report_metrics=False))

    def changed(header: dict[str, Any], trees: dict[str, Any]) -> None:
        header["metrics"] = {"auroc": 0.5} if header["accuracy"] is not None else {}

    grid.faults[103] = lambda message, honest: changed_response(honest(), changed)
    row = run(world.transport(grid, said), metrics=find(["f1"])).rows[-1]
    assert list(defined(row["client_metrics"]["f1"])) == [0, 4]
    assert row["clients"][1] is not None
    assert any("site-3 was not tested: it reports metrics that it was not asked for" in line for line in said)


def test_equality_can_fail(tmp_path: Path) -> None:
    model, method = network("group"), METHODS["fedavg"]()
    world = make_world(federation(), {"own": model}, method, SETTINGS, tmp_path)
    other = make_simulation(federation(), [model], method, seed=1, **SETTINGS)
    with pytest.raises(AssertionError):
        compare(world, other, [])


@pytest.mark.slow
def test_named_inputs(tmp_path: Path) -> None:
    fed, model, settings = named_federation(normalize="standard"), named_model(), {**SETTINGS, "participation": 1.0}
    world = make_world(fed, {"own": model}, METHODS["fedavg"](), settings, tmp_path, [STAGES["ccvr"]()])
    compare(world, make_simulation(fed, [model], METHODS["fedavg"](), **settings), [STAGES["ccvr"]()])
