"""FedClassAvg's tables by name: every cell can be built, table 2 survives a kill, table 5 counts bytes."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedhead.engine.experiment.callbacks import BestModel, EarlyStopping
from fedhead.engine.experiment.compute import Compute
from fedhead.methods.ktpfl import KTpFL
from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.published import published
from fedhead.papers.tables.reproduce import reproduce
from fedhead.recipes.experiment import build_experiment

TABLES = ["fedclassavg/table2", "fedclassavg/table3", "fedclassavg/table4", "fedclassavg/table5"]


@pytest.mark.parametrize(("name", "cells"), list(zip(TABLES, (24, 36, 12, 5), strict=True)))
def test_every_cell_has_its_published_value_and_a_recipe(name: str, cells: int) -> None:
    table = tables.load(name)
    assert len(table.cells()) == cells
    for cell in table.cells():
        assert (published(cell) is None) == (cell.name in ("ktpfl-predictions", "fedproto-prototypes"))
        cell.recipe(seed=0)
    for cell in table.cells("small"):
        build_experiment(cell.recipe(seed=0))


def test_table_1_s_hyper_parameters_are_those_of_the_cells() -> None:
    expected = {"cifar10": (1e-4, 0.1), "fashionmnist": (6e-4, 0.4662), "emnist-letters": (5e-4, 0.1)}
    for name in TABLES[:3]:
        for cell in tables.load(name).cells():
            recipe = cell.recipe(0)
            if recipe.method == "fedclassavg":
                assert (recipe.lr, recipe.method_parameters["rho"]) == expected[recipe.dataset]
                assert (recipe.batch_size, recipe.local_epochs, recipe.optimizer) == (64, 1, "adam")
                assert recipe.betas == (0.5, 0.999)
                assert recipe.augment == "simclr"


@pytest.mark.parametrize("choice", ["cifar10-dirichlet fedclassavg", "emnist-skewed fedproto"])
def test_full_cells_fit_their_data(choice: str) -> None:
    (cell,) = tables.load("fedclassavg/table2").cells(pick=[choice])
    made = build_experiment(cell.recipe(seed=0)).models
    assert len({m.features for m in made}) == 1
    assert len(made) == (4 if "fedclassavg" in choice else 3)


@pytest.mark.slow
def test_table_5_counts_what_crosses_the_wire(tmp_path: Path) -> None:
    outcome = reproduce(
        tables.load("fedclassavg/table5"), tmp_path, scale="small", compute=Compute(device="cpu", executor="loop")
    )
    found = {result.choices["what"]: result.mean for result in outcome.cells}
    classifier = 4 * (512 * 10 + 10)
    assert found["classifier"] == classifier
    assert found["whole-model"] == classifier + 4 * ((9 + 1) * 16 + (9 * 16 + 1) * 32 + (128 + 1) * 64 + (64 + 1) * 512)
    assert found["fedproto-prototypes"] == 4 * (512 * 10 + 10)  # the sums of 10 classes, and their counts
    assert found["ktpfl-predictions"] == 200 * 10 * 4
    assert found["ktpfl-public-images"] == 200 * 64


@pytest.mark.slow
def test_table_3_measures_local_models_after_training_for_every_method(tmp_path: Path) -> None:
    """No method has an epoch more than the others: FedAvg's last one is the stage's, after one round less."""
    settings = Compute(device="cpu", executor="stack")
    table = tables.load("fedclassavg/table3")
    for cell in table.cells():
        recipe = cell.recipe(0)
        epochs = recipe.rounds * recipe.local_epochs + (cell.stage == "finetune")  # type: ignore[operator]  # numbers here
        assert epochs == 1000
        assert (cell.stage == "finetune") == (recipe.method in ("fedavg", "fedprox"))
        assert recipe.method != "fedprox" or recipe.method_parameters["mu"] == 0.01
    outcome = reproduce(table, tmp_path, scale="small", pick=["cifar10 20-clients fedavg"], compute=settings)
    (result,) = outcome.cells
    runs = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/seed-0/result.json")]
    (run,) = (run for run in runs if not run["stages"])
    assert result.mean is not None
    assert result.mean > run["personal"]  # the averaged model's
    assert result.deviation is not None
    assert result.deviation < statistics.stdev(c for c in run["clients"] if c is not None)


@pytest.mark.slow
def test_the_public_codes_readings_are_variants() -> None:
    table = tables.load("fedclassavg/table3")
    more = table.varied(table.cells(pick=["cifar10 20-clients"]), ["extra-epoch"])
    assert {(cell.stage, cell.value, cell.recipe(0).rounds) for cell in more} == {("finetune", "personal", 1000)}
    assert all("stage=finetune" in cell.overrides for cell in more)
    (cnn, *_) = table.varied(table.cells(pick=["cifar10 20-clients ktpfl"]), ["caption-cnn"])
    assert [m.features for m in build_experiment(cnn.recipe(0)).models] == [512]
    for name in ("fedclassavg/table2", "fedclassavg/table3"):
        table = tables.load(name)
        for scale, patience in (("full", 100), ("small", 3)):
            stopped, *_ = table.varied(table.cells(scale), ["early-stopping"])
            watching = [EarlyStopping("personal_loss", patience=patience), BestModel("personal_loss")]
            assert list(build_experiment(stopped.recipe(0)).callbacks) == watching
        taught, *_ = table.varied(table.cells("small"), ["ktpfl-code"])
        assert taught.recipe(0).batch_size == 128
        assert build_experiment(taught.recipe(0)).method == KTpFL(
            distillation_batch=64, distillation_loss="mse", initial_epochs=1
        )


@pytest.mark.long
def test_table_2_runs_to_its_end_though_it_is_killed_on_the_way(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def start() -> subprocess.Popen[bytes]:
        command = ["-m", "fedhead", "reproduce", "fedclassavg/table2", "--scale", "small", "--out", str(tmp_path)]
        with log.open("ab") as said:
            return subprocess.Popen(
                [sys.executable, *command, "--executor", "loop", "--device", "cpu"],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=said,
            )

    def finished() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in tmp_path.glob("runs/*/*/result.json")}

    killed = start()
    begun = time.monotonic()
    while killed.poll() is None and len(finished()) < 3 and time.monotonic() - begun < 200:
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    before = finished()
    assert len(before) >= 3
    assert not (tmp_path / "table.json").exists()
    again = start()
    assert again.wait(timeout=280) == 0, log.read_text()
    assert all(finished()[path] == when for path, when in before.items())  # what was finished was not run again
    results = json.loads((tmp_path / "table.json").read_text())["cells"]
    assert len(results) == 24
    for result in results:
        assert 10 < result["mean"] <= 100
        assert result["deviation"] > 0  # over clients
        assert result["published"] is not None
        assert result["difference"] is None  # the small version can't be compared
