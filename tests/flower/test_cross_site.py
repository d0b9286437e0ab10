"""Cross-site matrix: every model on every site's test samples, equal to a simulation, with the sites' consent."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from simulations import make_simulation, make_world, run
from small import federation, network
from tiers import quick

import fedhead as fh
from fedhead.algorithm.task import LocalTraining
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.deploy.project import Project
from fedhead.engine.clients.server import global_model
from fedhead.engine.rounds.transport import Context
from fedhead.flower import factory
from fedhead.flower.ledger import Ledger
from fedhead.flower.server.cross_site import matrix
from fedhead.flower.server_run import evaluate, serve
from fedhead.flower.site.policy import Policy
from fedhead.methods import METHODS
from fedhead.stages import STAGES
from fedhead.testing.inprocess import InProcess

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.1, momentum=0.9))
SETTINGS: dict[str, Any] = {"rounds": 3, "local": LOCAL}
CASES = [*sorted(METHODS), "fedavg+finetune", "fedavg+ccvr", "fedrep+finetune", "fedavg+ridge"]


@pytest.mark.parametrize("case", quick(CASES, "fedproto", "fedavg+ccvr"))
def test_the_matrix_equals_a_simulation(case: str, tmp_path: Path) -> None:
    name, _, stage = case.partition("+")
    fed, model, method = federation(), network("batch", METHODS[name].head), METHODS[name]()
    stages = [STAGES[stage]()] if stage else []
    world = make_world(fed, {"own": model}, method, SETTINGS, tmp_path, stages, metrics=["f1"], dtype=torch.float64)
    simulation = make_simulation(fed, [model], method, dtype=torch.float64, **SETTINGS)
    grid = world.grid()
    grid.nodes = {n: dataclasses.replace(site, policy=Policy(share_model=True)) for n, site in grid.nodes.items()}
    transport = world.transport(grid)
    found, expected = run(transport, stages), run(simulation, stages)
    algorithm, server, states, number = method, simulation.server, simulation.states, simulation.round
    here = transport.context(transport.round)
    if stage:
        result, number = expected.stages[stage], number + 1
        algorithm, server, states = stages[0].on_method(method), result.server, result.states
        here = Context(algorithm, found.stages[stage].server, found.stages[stage].states, number)
    cells, missing = matrix(transport, here)
    assert not missing
    clients = simulation.clients
    jobs = simulation.jobs(algorithm, server, states, clients.holders, number)
    inputs = {k: (job, job.inputs(i)) for job in jobs for i, k in enumerate(job.clients)}
    seen = {(cell["model"], cell["test"]): cell for cell in cells}
    rows, pool = clients.test_indices
    tested = [k for k in clients.holders if len(rows[k])]
    shared = global_model(algorithm, server, clients.task)
    names = [f"site-{k}" for k in clients.holders]
    assert seen.keys() == {
        (m, f"site-{k}") for m in [*names, *(["(global)"] if shared is not None else [])] for k in tested
    }
    with torch.no_grad():
        for j in tested:
            indices = torch.from_numpy(rows[j])
            x, y = pool.view(indices, None), pool.y[indices]
            client = inputs[j][0].program.client(inputs[j][1])
            scores = {
                f"site-{i}": algorithm.predict(
                    algorithm.personal_model(inputs[i][0].program.client(inputs[i][1])), x, client
                )
                for i in clients.holders
            }
            if shared is not None:
                scores["(global)"] = algorithm.scores(client.apply(shared, x, train=False), shared, client.task)
            for model_of, values in scores.items():
                cell = seen[model_of, f"site-{j}"]
                assert cell["accuracy"] == pytest.approx(
                    100 * float((values.argmax(1) == y).double().mean()), abs=1e-10
                )
                loss = float(torch.nn.functional.cross_entropy(values, y))
                assert cell["loss"] is None or cell["loss"] == pytest.approx(loss, abs=1e-10)
                assert cell["samples"] == len(y)
                assert "f1" in cell


def deployment(folder: Path, *words: str) -> tuple[Project, InProcess]:
    """Three sites, of which the first two let their models leave."""
    settings = ["subset=160", "rounds=2", "local_epochs=1", "batch_size=16", "client_test=0.3", "metrics=[f1]", *words]
    made = Project.init(folder, "digits", ["a", "b", "c"], settings)
    made.server_file.write_text(made.server_file.read_text().replace("join_seconds: 120", "join_seconds: 0.3"))
    for name in ("a", "b"):
        file = made.path / "sites" / name / "site.yaml"
        file.write_text(file.read_text() + "share_model: true\n")
    return made, InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})


@pytest.mark.parametrize("words", quick([("method=fedrep",), ("stages=[finetune]",)], ("stages=[finetune]",)))
def test_a_model_leaves_its_site_with_consent_only(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, grid = deployment(tmp_path / "demo", *words)
    with pytest.raises(BadInput, match="is no run folder"):
        evaluate(made.server(), grid)
    row, said = serve(made.server(), grid, log=lambda line: None), list[str]()
    evaluate(made.server(), grid, said.append)
    content = json.loads((made.path / "run" / "cross_site.json").read_text())
    found = {(cell["model"], cell["test"]): cell for cell in content["cells"]}
    models = ["a", "b", *(["(global)"] if "finetune" in words[0] else [])]
    assert found.keys() == {*((model, site) for model in models for site in "abc"), ("c", "c")}
    record = row["stages"]["finetune"] if "finetune" in words[0] else fh.load(made.path / "run").rows[-1]
    assert [found[k, k]["accuracy"] for k in "abc"] == pytest.approx(record["clients"], abs=1e-10)
    assert [found[k, k]["f1"] for k in "abc"] == pytest.approx(record["client_metrics"]["f1"], abs=1e-10)
    assert any(line.startswith("model c: share_model in its site.yaml is false (consent, reference") for line in said)
    assert content["missing"].keys() == {"model c"}
    assert "set share_model, and no max_epsilon, if it may leave the site" in capsys.readouterr().err
    page = tmp_path / "report.html"
    assert call(["report", str(made.path / "run"), "--out", str(page)]) == 0
    assert "f1, model by test samples" in page.read_text()
    lines = (made.path / "run" / "cross_site.csv").read_text().splitlines()
    assert lines[0] == "model,test,samples,accuracy,loss,f1"
    assert len(lines) == 1 + len(found)
    label = "finetune" if "finetune" in words[0] else "train"
    for name, sent in (("a", {"model"}), ("c", set())):
        entries = list(Ledger(made.path / "sites" / name / "state" / "ledger.jsonl").entries())
        (asked,) = (entry for entry in entries if entry["kind"] == "model")
        assert asked["algorithm"] == label
        assert asked.get("sent", {}).keys() == sent
        given = [entry for entry in entries if entry.get("given")]
        assert {entry["given"] for entry in given} == ({"site", "global"} if label == "finetune" else {"site"})
        assert all("model" in entry["asked"] for entry in given)
    server = [entry["kind"] for entry in Ledger(made.path / "run" / "ledger.jsonl").entries()]
    assert server.count("model") == 3


def test_a_site_refuses_a_model_that_does_not_fit(tmp_path: Path) -> None:
    fed, model = federation(), network("batch", "linear")
    world = make_world(fed, {"own": model}, METHODS["fedavg"](), SETTINGS, tmp_path)
    transport = world.transport(world.grid())
    run(transport)
    context = transport.context(transport.round)
    shared = global_model(context.algorithm, context.server, transport.clients.task)
    assert shared is not None
    for odd in (shared.map(lambda t: t[:1]), shared.map(lambda t: t / 0)):
        for kind in ("global", "site"):
            answers, refused = transport.test_model(context, [0], kind, odd)  # type: ignore[arg-type]
            assert not answers
            assert "reference" in refused[0]


def test_the_matrix_needs_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, grid = deployment(tmp_path / "demo")
    serve(made.server(), grid, log=lambda line: None)
    (made.path / "run" / "result.json").unlink()
    assert call(["deploy", "evaluate", str(made.path)]) == 2
    assert "run is not finished: resume the run first" in capsys.readouterr().err
    with pytest.raises(BadInput, match="is not finished: resume the run first"):
        evaluate(made.server(), grid)
