"""FedETF's tables: every cell can be built and finds its published value; a table survives being killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedhead.engine.experiment.compute import Compute
from fedhead.methods.fedetf import FedETF
from fedhead.methods.fedproto import FedProto
from fedhead.methods.fedrod import FedRoD
from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.published import published, published_rows
from fedhead.papers.tables.reproduce import reproduce
from fedhead.recipes import experiment as build
from fedhead.recipes.experiment import build_experiment
from fedhead.stages.ccvr import CCVR
from fedhead.stages.finetune import FineTuneCCVR, FineTuneETF

TABLES = ["table1", "table2", "table3", "table4", "table5", "figure6"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_every_cell_can_be_built_and_finds_its_value(name: str) -> None:
    table = tables.load(f"fedetf/{name}")
    cells = table.cells("full")
    results = [published(cell) for cell in cells]
    rows = [row for row in published_rows() if (row["paper"], f"table{row['table']}") == ("fedetf", name)]
    assert sum(result is not None for result in results) == len([row for row in rows if row["mean"]])
    seen: set[str] = set()
    for cell in table.cells("small"):
        recipe = cell.recipe(0)
        text = recipe.to_yaml() + str(cell.stage)
        if text not in seen:
            seen.add(text)
            build_experiment(recipe)
            if cell.stage is not None:
                build.algorithms(recipe.override([f"stages=[{cell.stage}]"]))


@pytest.mark.parametrize("name", TABLES[:5])
def test_the_public_codes_readings_are_one_variant(name: str) -> None:
    table = tables.load(f"fedetf/{name}")
    cells = table.varied(table.cells("full"), ["public-code"])
    assert len(cells) == len(table.cells("full"))
    for cell in cells:
        recipe = cell.recipe(7)
        assert str(recipe.partition).endswith(", fedetf)")
        assert recipe.lr_decay == 1.0
        method, stages = build.algorithms(recipe.override([f"stages=[{cell.stage}]"] if cell.stage else []))
        if isinstance(method, FedETF | FedRoD) and method.name in cell.name.split():
            assert method.absent == "one"
        assert not any(isinstance(stage, FineTuneETF) and cell.parameters["variant"] == "paper" for stage in stages)


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table5"])
def test_clients_are_tuned_at_the_decayed_rate_and_at_the_first_rounds_in_a_variant(name: str) -> None:
    table = tables.load(f"fedetf/{name}")
    personal = [cell for cell in table.cells("full") if cell.metric == "personalization"]
    varied = table.varied(table.cells("full"), ["full-rate-tuning"])
    assert [cell.name for cell in varied] == [cell.name for cell in personal]
    assert not any("full_lr" in cell.parameters for cell in personal)
    assert all(cell.parameters["full_lr"] for cell in varied)


def test_the_papers_settings() -> None:
    cells = {cell.name: cell for cell in tables.load("fedetf/table1").cells("full")}
    recipe = cells["fedetf cifar10-0.05 general"].recipe(0)
    assert (recipe.clients, recipe.rounds, recipe.local_epochs) == (20, 200, 3)
    assert (recipe.lr, recipe.lr_decay, recipe.momentum, recipe.weight_decay) == (0.04, 0.99, 0.9, 5e-4)
    assert (recipe.model, recipe.client_test, recipe.last_rounds) == ("resnet20", 0.3, 5)
    tiny = cells["fedavg tinyimagenet-0.1 general"].recipe(0)
    assert (tiny.model, tiny.rounds, tiny.local_epochs, tiny.lr) == ("resnet18", 50, 1, 0.01)
    assert cells["fedetf cifar10-0.1 personal"].stage == "finetune_etf"
    assert cells["fedavg cifar10-0.1 personal"].stage == "finetune"
    prototypes = build.algorithms(cells["fedproto cifar10-0.1 personal"].recipe(0))[0]
    assert prototypes == FedProto(lam=0.1, predict_by="logits", average_over="clients")
    calibrated, tuned = CCVR(**cells["ccvr cifar10-0.1 general"].parameters), FineTuneCCVR()
    assert cells["ccvr cifar10-0.1 personal"].stage == "finetune_ccvr"
    assert cells["ccvr cifar10-0.1 personal"].parameters == {}
    for method in ("fedetf", "fedrod"):  # one rule for both, stated
        assert cells[f"{method} cifar10-0.1 general"].keys["method.absent"] == "mask"
    assert (calibrated.samples, calibrated.epochs, calibrated.batch_size) == (10, 100, 128)
    assert (calibrated.lr, calibrated.momentum, calibrated.weight_decay) == (0.01, 0.0, 0.0)  # plain SGD
    assert calibrated == tuned.prerequisite()  # what is tuned for Personal. is the model that is tested for General.
    ablation = {cell.name: cell for cell in tables.load("fedetf/table4").cells("small")}
    (model,) = build_experiment(ablation["no-projection digits-for-cifar10-0.1"].recipe(0)).models
    assert model.features == 200  # the ETF stands in the extractor's own dimension


@pytest.mark.slow
def test_a_table_of_few_cells(tmp_path: Path) -> None:
    pick, settings = ["d-9", "step-global", "step-20"], Compute(executor="stack")
    outcome = reproduce(tables.load("fedetf/figure6"), tmp_path, scale="small", pick=pick, compute=settings)
    found = {result.cell: result.mean for result in outcome.cells}
    assert found.keys() == {"d-9", "step-global", "step-20"}
    assert all(value is not None for value in found.values())
    assert not outcome.comparable


def _start(out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedhead", "reproduce", "fedetf/table1", "--scale", "small", "--out", str(out)]
    return subprocess.Popen(
        [*command, "--executor", "stack"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.long
@pytest.mark.timeout(900)
def test_table_1_runs_to_its_end_and_resumes_after_being_killed(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert _start(whole).wait() == 0
    # kills by progress: after the first runs, and in the middle
    for wanted in (2, 9):
        process = _start(killed)
        while process.poll() is None and len(list(killed.glob("runs/*/*/result.json"))) < wanted:
            time.sleep(0.05)
        assert process.poll() is None, "killed too late to show anything"
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = {path: path.stat().st_mtime_ns for path in killed.glob("runs/*/*/result.json")}
    assert len(done) >= 9
    assert _start(killed).wait() == 0
    assert all(path.stat().st_mtime_ns == then for path, then in done.items())  # finished runs are left as they are
    first, second = (json.loads((out / "table.json").read_text()) for out in (whole, killed))
    assert first["cells"] == second["cells"]
    assert len(first["cells"]) == 114
    assert all(result["mean"] is not None for result in first["cells"])
