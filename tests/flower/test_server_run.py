"""The server's whole run from its files, on the in-process grid: run folder, resumption, architectures, a full disk."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tiers import quick

from fedhead.api.compare import compare
from fedhead.api.load import load as load_result
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.tree.treefile import load_tree
from fedhead.deploy.project import Project
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.loop import Loop
from fedhead.flower import factory
from fedhead.flower.server.transport import FlowerTransport
from fedhead.flower.server_run import serve
from fedhead.metrics.records import Row
from fedhead.recipes.experiment import build_experiment, prepare
from fedhead.recipes.recipe import load
from fedhead.runs import checkpoint
from fedhead.runs.reopen import reopen
from fedhead.runs.run import execute
from fedhead.testing.inprocess import InProcess

SMALL = ["subset=120", "rounds=3", "local_epochs=1", "partition=dirichlet(1.0)", "batch_size=16"]


def project(folder: Path, *assignments: str, sites: int = 3) -> tuple[Project, InProcess]:
    words = {word.partition("=")[0]: word for word in [*SMALL, *assignments]}  # a later value replaces an earlier one
    made = Project.init(folder / "demo", "digits", [f"site-{k}" for k in range(sites)], list(words.values()))
    text = made.server_file.read_text().replace("join_seconds: 120", "join_seconds: 0.3")
    made.server_file.write_text(text)
    for file in made.sites().values():
        with file.path.open("a") as yaml:
            yaml.write("min_class_count: 1\n")  # as in a simulation
    return made, InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})


def leaves(path: Path) -> dict[str, torch.Tensor]:
    return load_tree(path / "checkpoint.safetensors")[0]["server"].leaves()  # type: ignore[no-any-return]


def accepted(made: Project) -> list[int]:
    return load_tree(made.path / "run" / "checkpoint.safetensors")[0]["accepted"].tolist()  # type: ignore[no-any-return]  # a list


def test_a_run_folder_equals_a_simulations(tmp_path: Path) -> None:
    made, grid = project(tmp_path, "method=scaffold", "stages=[ccvr]", "stage.ccvr.epochs=1", "client_test=0.3")
    found = serve(made.server(), grid, log=lambda line: None)
    torch.set_num_threads(1)
    expected = execute(
        made.server().recipe_of_run(), tmp_path / "sim", Compute(executor="loop", device="cpu", threads=1)
    )
    for name in ("accuracy", "accuracy_mean", "personal", "clients", "per_class", "bytes_up", "bytes_down"):
        assert found[name] == pytest.approx(expected[name], abs=1e-6), name
    assert found["stages"].keys() == expected["stages"].keys()
    for name, stage in expected["stages"].items():
        assert found["stages"][name]["accuracy"] == pytest.approx(stage["accuracy"], abs=1e-6)
    assert found.keys() == expected.keys()  # so that the same report reads both
    mine, theirs = leaves(made.path / "run"), leaves(tmp_path / "sim")
    for name, t in theirs.items():
        torch.testing.assert_close(mine[name], t, atol=1e-6, rtol=1e-6)
    names = {path.name for path in (tmp_path / "sim").iterdir()}
    assert {path.name for path in (made.path / "run").iterdir()} == names | {"ledger.jsonl"}


@pytest.mark.parametrize("name", quick(["fedavg", "scaffold"], "scaffold"))
def test_first_weights_are_the_servers(name: str, tmp_path: Path) -> None:
    first = build_experiment(load("digits", ["seed=7"])).models[0]
    save_file({name: t.contiguous() for name, t in first.state_dict().items()}, tmp_path / "first.safetensors")
    words = (f"method={name}", f"weights={tmp_path / 'first.safetensors'}", "metrics=[f1]", "client_test=0.3")
    made, grid = project(tmp_path, *words)
    found = serve(made.server(), grid, log=lambda line: None)
    settings = Compute(executor="loop", device="cpu", threads=1)
    expected = execute(made.server().recipe_of_run(), tmp_path / "sim", settings)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
    mine, theirs = leaves(made.path / "run"), leaves(tmp_path / "sim")
    for entry, t in theirs.items():
        torch.testing.assert_close(mine[entry], t, atol=1e-6, rtol=1e-6)
    rows = [json.loads(line) for line in (made.path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(len(row["client_metrics"]["f1"]) == 3 for row in rows)


@pytest.mark.parametrize("name", quick(["moon", "ditto", "fedrep"], "moon"))
def test_first_weights_that_sites_would_need_are_refused(name: str, tmp_path: Path) -> None:
    first = build_experiment(load("digits", ["seed=7"])).models[0]
    save_file({name: t.contiguous() for name, t in first.state_dict().items()}, tmp_path / "first.safetensors")
    made, grid = project(tmp_path, f"method={name}", f"weights={tmp_path / 'first.safetensors'}")
    with pytest.raises(BadInput, match=f"weights: {name} keeps a model at its sites that begins with"):
        serve(made.server(), grid, log=lambda line: None)
    assert not (made.path / "run").exists()


def test_two_architectures_of_a_recipe(tmp_path: Path) -> None:
    models = "model=['mlp(hidden=[12])', 'mlp(hidden=[9, 7])']"
    made, grid = project(tmp_path, "method=fedclassavg", models, "model.feature_layer=8", "client_test=0.3")
    found = serve(made.server(), grid, log=lambda line: None)
    recipe = made.server().recipe_of_run()
    simulation = Simulation(*prepare(recipe), Compute(device="cpu", executor="loop"))
    assert len(simulation.experiment.models) == 2
    for number in range(1, 4):
        train_round(simulation.using(Loop()), number)
    accuracies = simulation.evaluate(simulation.context(3)).accuracy
    assert found["clients"] == pytest.approx(accuracies, abs=1e-6)
    for name, t in simulation.server.leaves().items():
        torch.testing.assert_close(leaves(made.path / "run")[name], t, atol=1e-6, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "failure",
    [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: No space left on device")],
    ids=["python", "safetensors"],
)
def test_a_full_disk_stops_the_server_by_name_and_it_resumes(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, grid = project(tmp_path, "method=scaffold")
    honest, calls = checkpoint.save_tree, []

    def full(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise failure
        honest(*arguments)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(checkpoint, "save_tree", full)
    with pytest.raises(FedheadError, match=r"can't write to .*run \(.*No space left.*make room there.*then resume"):
        serve(made.server(), grid, log=lambda line: None)
    monkeypatch.undo()
    said: list[str] = []
    found = serve(made.server(), grid, resume=True, log=said.append)
    assert "going on after round 1" in said
    assert [json.loads(line)["round"] for line in (made.path / "run" / "metrics.jsonl").read_text().splitlines()] == [
        1,
        2,
        3,
    ]
    other, other_grid = project(tmp_path / "other", "method=scaffold")
    straight = serve(other.server(), other_grid, log=lambda line: None)
    assert found["accuracy"] == pytest.approx(straight["accuracy"], abs=1e-6)
    for name, t in leaves(other.path / "run").items():
        torch.testing.assert_close(leaves(made.path / "run")[name], t, atol=1e-6, rtol=1e-6)


def test_a_resumed_server_sends_frozen_parameters_only_to_sites_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first weights are a file of the server's, so a site can't build the frozen ones by itself."""
    first = build_experiment(load("digits", ["seed=7"])).models[0]
    save_file({name: t.contiguous() for name, t in first.state_dict().items()}, tmp_path / "first.safetensors")
    words = (f"weights={tmp_path / 'first.safetensors'}", "freeze=[extractor]", "participation=0.67")
    made, grid = project(tmp_path, *words)
    honest = rounds.train_round

    def stopped(transport: FlowerTransport, number: int, **settings: bool) -> Row:
        return honest(transport, number, **settings) if number == 1 else 1 / 0  # type: ignore[return-value]  # raises

    monkeypatch.setattr(rounds, "train_round", stopped)
    with pytest.raises(ZeroDivisionError):
        serve(made.server(), grid, log=lambda line: None)
    monkeypatch.undo()
    assert 0 in accepted(made)
    serve(made.server(), grid, resume=True, log=lambda line: None)
    assert 0 not in accepted(made)  # the site that had not taken part has joined
    expected = execute(made.server().recipe_of_run(), tmp_path / "sim", Compute(executor="loop", device="cpu"))
    rows = [
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (made.path / "run", tmp_path / "sim")
    ]
    assert not any("failed" in row for row in rows[0])
    assert [row["bytes_down"] for row in rows[0]] == [row["bytes_down"] for row in rows[1]]
    assert expected["bytes_down"] < 3 * rows[0][0]["bytes_down"]
    for name, t in leaves(tmp_path / "sim").items():
        torch.testing.assert_close(leaves(made.path / "run")[name], t, atol=1e-6, rtol=1e-6)


def test_the_last_line_counts_the_sites_behind_a_mean(tmp_path: Path) -> None:
    made, grid = project(tmp_path, "client_test=0.3", "stages=[ccvr]", "stage.ccvr.epochs=1")
    said: list[str] = []

    def log(line: str) -> None:
        said.append(line)
        if line.startswith("round 2, "):
            grid.nodes.pop(12, None)  # lost, as if its node was killed

    found = serve(made.server(), grid, log=log)
    stage = found["stages"]["ccvr"]
    assert not any("of 3 sites" in line for line in said if line.startswith(("round 1, ", "round 2, ")))
    assert said[-1] == (
        f"finished, accuracy {found['accuracy']:.2f} %, personal {found['personal']:.2f} % (2 of 3 sites)"
        f"; after ccvr: accuracy {stage['accuracy']:.2f} %, personal {stage['personal']:.2f} % (2 of 3 sites)"
    )
    other, whole = project(tmp_path / "whole", "client_test=0.3", "method=fedprox")
    serve(other.server(), whole, log=said.append)
    assert "of 3 sites" not in said[-1]
    folders, lost = [each.path / "run" for each in (made, other)], "2 of 3 clients, the others failed or were absent"
    expected = {f"{folders[0]}{after}: personal is the mean over {lost}" for after in ("", " after ccvr")}
    assert expected == {note for note in compare(folders, metric="personal").notes if " is the mean over " in note}
    assert not any(" is the mean over " in note for note in compare(folders, metric="accuracy").notes)


def test_a_finished_run_is_left_as_it_is_and_another_one_refused(tmp_path: Path) -> None:
    made, grid = project(tmp_path, "rounds=1")
    first = serve(made.server(), grid, log=lambda line: None)
    assert serve(made.server(), InProcess({}), resume=True, log=lambda line: None) == first
    with pytest.raises(BadInput, match="finished run already"):
        serve(made.server(), grid, log=lambda line: None)


def test_a_resumed_run_keeps_its_sites(tmp_path: Path) -> None:
    made, grid = project(tmp_path)
    del grid.nodes[12]
    text = made.server_file.read_text()
    made.server_file.write_text(text.replace("quorum: 2", "quorum: 3"))
    with pytest.raises(
        FedheadError, match=r"2 of 3 sites are there after 0\.3 s, at least 3 are needed; missing: site-2"
    ):
        serve(made.server(), grid, log=lambda line: None)
    made.server_file.write_text(text.replace('"site-0", "site-1", "site-2"', '"site-1", "site-0", "site-2"'))
    with pytest.raises(BadInput, match="other sites"):
        serve(made.server(), grid, resume=True, log=lambda line: None)


def test_sites_of_their_own_data(tmp_path: Path) -> None:
    """Two .npz files at two sites, and the server's own test samples: no data set of the registry anywhere."""
    import numpy as np

    rng = np.random.RandomState(0)
    for name in ("north", "south", "held"):
        np.savez(tmp_path / f"{name}.npz", x=rng.randint(0, 256, (30, 4, 4)).astype(np.uint8), y=rng.randint(0, 2, 30))
    made = Project.init(
        tmp_path / "own",
        "digits",
        ["north", "south"],
        ["rounds=2", "local_epochs=1"],
        data=[str(tmp_path / "north.npz"), str(tmp_path / "south.npz")],
    )
    text = made.server_file.read_text().replace("test: null", f'test: "{tmp_path}/held.npz"')
    made.server_file.write_text(text + "classes: [cat, dog]\nshape: [1, 4, 4]\n")
    grid = InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})
    found = serve(made.server(), grid, log=lambda line: None)
    assert found["accuracy"] is not None
    assert len(found["per_class"]) == 2
    with np.load(tmp_path / "held.npz") as held:
        measured = load_result(tmp_path / "own" / "run").evaluate(held["x"], held["y"])
    assert measured["accuracy"] == found["accuracy"]
    assert not (tmp_path / "own" / "run" / "partition.npz").exists()
    assert (found["dataset"], found["partition"]) == ("own", "natural")  # the deployment's title, not the recipe's data
    assert load_result(tmp_path / "own" / "run").record.class_names == ("cat", "dog")
    assert load_result(tmp_path / "own" / "run").record.client_names == ("north", "south")
    assert serve(made.server(), InProcess({}), resume=True, log=lambda line: None) == found
    with pytest.raises(BadInput, match="its own federation, which its folder does not hold: give the same"):
        reopen(tmp_path / "own" / "run")  # nothing is calibrated on the digits of the recipe
    made.server_file.write_text(made.server_file.read_text().replace("rounds=2", "subset=9"))
    with pytest.raises(BadInput, match="subset: 9 is not done with the sites' own data: leave it out"):
        made.server().recipe_of_run()


def test_the_recipes_normalization_is_that_of_the_servers_test(tmp_path: Path) -> None:
    """The server normalizes its test samples as the sites do their own, also by means over all clients."""
    made, grid = project(tmp_path, "normalize=standard", "rounds=1")
    found = serve(made.server(), grid, log=lambda line: None)
    expected = execute(made.server().recipe_of_run(), tmp_path / "sim", Compute(executor="loop", device="cpu"))
    assert found["test_loss"] == pytest.approx(expected["test_loss"], abs=1e-6)
