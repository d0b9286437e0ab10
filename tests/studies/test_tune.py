"""Tuning: finds what was planted, never reads test samples, resumes, is shared, and equals single runs."""

from __future__ import annotations

import csv
import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from tiers import quick

import fedhead as fh
from fedhead.cli import call
from fedhead.data.sources.datasets import Dataset
from fedhead.data.transforms.augment import Transform
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import InputSpec
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.simulation import Simulation
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import Recipe, load
from fedhead.recipes.recipe_data import search_federation
from fedhead.recipes.search_space import Dimension, with_values
from fedhead.report.figures import tuning_plots
from fedhead.runs.run import execute
from fedhead.studies.time_budget import TimeBudget
from fedhead.studies.tune.study import Study, load_study, read_about
from fedhead.studies.tune.trial_training import TrialTraining
from fedhead.studies.tune.trials import Outcome
from fedhead.studies.tune.tune import _train_finally

pytest.importorskip("optuna")


def _read(root: Path, part: str, download: bool) -> fh.Samples:
    if part == "test":
        raise AssertionError("test samples were read")
    rng = np.random.RandomState(0)
    y = rng.randint(0, 3, 120)
    x = rng.randn(120, 6).astype(np.float32) + 2 * np.eye(3, 6, dtype=np.float32)[y]
    return fh.Samples(torch.from_numpy(x), torch.from_numpy(y))


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set whose test part raises when it is read."""
    entry = Dataset("guarded", 3, (6,), Transform(), "guarded", "here", _read)
    monkeypatch.setitem(fh.DATASETS._held, "guarded", entry)
    return "guarded"


SMALL = {"clients": 3, "rounds": 2, "batch_size": 16, "partition": "dirichlet(1.0)", "model": "mlp(hidden=[4])"}


@dataclass(frozen=True)
class Planted(fh.Method):
    """FedAvg whose models are spoilt the more, the further `place` is from 0.3."""

    place: Annotated[float, fh.AtLeast(0), fh.AtMost(1)] = 0.0

    def aggregate(self, server: fh.Tree, replies: fh.Replies, task: fh.Task) -> fh.Tree:
        new = super().aggregate(server, replies, task)
        return new.replace(model=new["model"].map(lambda t: t + 4 * abs(self.place - 0.3)))


@pytest.fixture
def planted(guarded: str, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setitem(fh.METHODS._held, "planted", Planted)
    return Recipe(dataset=guarded, method="planted", **SMALL)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_finds_a_planted_optimum_without_reading_test_samples(planted: Recipe, tmp_path: Path, sampler: str) -> None:
    found = fh.tune(
        planted,
        "method.place=uniform(0, 1)",
        out=tmp_path / "study",
        trials=20,
        objective="loss",
        sampler=sampler,
        pruner="none",
    )
    assert abs(found.recipe.method_parameters["place"] - 0.3) < 0.08
    assert len(found.trials) == 20
    best = load(tmp_path / "study" / "best.yaml")
    assert best == found.recipe
    with (tmp_path / "study" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert min(float(row["value"]) for row in rows) == found.value


def test_the_search_tests_on_samples_that_it_does_not_train_on_and_gives_them_back(guarded: str) -> None:
    recipe = Recipe(dataset=guarded, client_test=0.2, **SMALL)  # type: ignore[arg-type]
    made = search_federation(recipe, 0.15, personal=True)
    assert made.test is not None
    assert made.client_test is not None
    held = torch.cat([made.test.x[torch.from_numpy(rows)] for rows in made.client_test])
    assert len(held) == len(made.test.y) == sum(int(0.15 * n) for n in _sizes(recipe))
    trained = made.train.x[torch.from_numpy(np.concatenate(made.indices))]
    assert not (trained[:, None] == made.test.x[None]).all(-1).any()
    assert sum(map(len, made.indices)) + len(made.test.y) == sum(_sizes(recipe))  # clients' test rows are in neither


def _sizes(recipe: Recipe) -> list[int]:
    """Training samples of each client before any are held back for validation."""
    return [len(a) + len(b) for a, b in _pairs(search_federation(recipe, 0.5, personal=True))]


def _pairs(made: fh.Federation) -> list[tuple[Any, Any]]:
    assert made.client_test is not None
    return list(zip(made.indices, made.client_test, strict=True))


@pytest.mark.slow
def test_each_trial_has_the_value_of_its_own_single_run(guarded: str, tmp_path: Path) -> None:
    recipe = Recipe(dataset=guarded, method="fedprox", momentum=0.5, **SMALL)  # type: ignore[arg-type]
    space = ["lr=log(0.01, 1)", "method.mu=log(1e-3, 10)"]
    found = fh.tune(recipe, *space, out=tmp_path / "s", trials=4, objective="loss", pruner="none")
    federation = search_federation(recipe, 0.15)
    for trial in found.trials:
        alone = build_experiment(with_values(recipe, dict(trial.values)), InputSpec.of(federation))
        result = rounds.run(Simulation(alone, federation, Compute(executor="stack", device="cpu")))
        assert result.test_loss == pytest.approx(trial.value, rel=1e-5)


@pytest.mark.slow
def test_the_best_setting_is_trained_on_all_samples_in_the_end(tmp_path: Path) -> None:
    recipe = load("digits", ["subset=200", "rounds=1", "local_epochs=1", "model=mlp(hidden=[8])"])
    found = fh.tune(recipe, "lr=choice(0.01, 0.1)", "seed=3", out=tmp_path / "s", trials=2, final=True)
    alone = execute(load(tmp_path / "s" / "best.yaml"), tmp_path / "alone")
    assert len(tuning_plots.save(tmp_path / "s")) == 8
    for name in ("best_so_far", "slices", "parallel_coordinates", "importance"):
        for ending in ("png", "pdf"):
            assert (tmp_path / "s" / f"{name}.{ending}").stat().st_size > 1000
    assert found.final is not None
    assert found.final["accuracy"] == alone["accuracy"]
    assert found.recipe.validation is None


@pytest.mark.slow
def test_poor_trials_end_early_and_a_study_goes_on_where_it_was(planted: Recipe, tmp_path: Path) -> None:
    longer = replace(planted, rounds=4)
    same = {"out": tmp_path / "s", "objective": "loss", "sampler": "random"}
    first = fh.tune(longer, "method.place=uniform(0, 1)", trials=6, **same)  # type: ignore[arg-type]
    second = fh.tune(longer, "method.place=uniform(0, 1)", trials=12, **same)  # type: ignore[arg-type]
    assert [one.values for one in second.trials[:6]] == [one.values for one in first.trials]
    assert len(second.trials) == 12
    pruned = [one for one in second.trials if one.state == "pruned"]
    assert pruned
    assert all(1 <= one.trained_rounds < 4 for one in pruned)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digits"], "nothing is searched"),
        (["digits", "lr=[0.1, 1]"], "[0.1, 1] is not a number; to search among values write lr=choice(0.1, 1)"),
        (["digits", "betas=[[0.9, 0.99], [0.8, 0.99]]"], "among values write betas=choice([0.9, 0.99], [0.8, 0.99])"),
        (["digits", "lr=log(-1, 1)"], "positive bounds"),
        (["digits", "lr=log(1, 0.1)"], "range is empty"),
        (["digits", "lr=uniform(-1, 1)"], "lr: -1 is out of range"),
        (["digits", "momentum=uniform(0, 1)"], "below 1"),
        (["digits", "method=fedprox", "method.mu=uniform(-1, 1)"], "at least 0"),
        (["digits", "lr=choice()"], "nothing to choose"),
        (["digits", "local_epochs=int(1, 2.5)"], "whole numbers"),
        (["digits", "momentun=uniform(0, 0.9)"], "did you mean 'momentum'"),
        (["digits", "method.mi=uniform(0, 1)"], "takes no parameters"),
        (["digits", "method=fedprox", "method.mi=uniform(0, 1)"], "did you mean 'mu'"),
        (["digits", "lr=log(0.1, 1)", "--trials", "0"], "trials: 0"),
        (["digits", "lr=log(0.1, 1)", "--objective", "acuracy"], "accuracy"),
        (["digits", "lr=log(0.1, 1)", "lr=log(0.1, 2)"], "twice"),
        (["digits", "lr=log(0.1, 1)", "seeds=[0, 1]"], "a run has one seed"),
        (["digits", "lr=log(0.1, 1)", "--validation", "1.5"], "validation"),
        (["digits", "lr=log(0.1, 1)", "--validation", "0"], "validation: 0"),
        (["digits", "lr=log(0.1, 1)", "lr=0.1"], "lr is given twice"),
        (["digits", "method.mu=log(0.1, 1)", "method=fedprox(mu=0.1)"], "method.mu is given twice"),
        (["digits", "lr=Log(0.1, 1)"], "not a number"),
        (["digits", "validation=uniform(0.1, 0.5)"], "can't be searched"),
        (["digits", "lr=log(0.1, 1)", "--seed", "99999999999"], "seed: 99999999999"),
    ],
)
def test_bad_input_is_said_in_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["tune", *words, "--out", str(tmp_path / "s")]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert "\n" not in error
    assert not (tmp_path / "s").exists()


def test_a_folder_that_holds_something_else_is_refused(planted: Recipe, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(fh.BadInput, match=r"is not empty and holds no study \(it has notes.txt\): give another --out"):
        fh.tune(planted, "lr=log(0.01, 0.1)", out=tmp_path, trials=1, objective="loss")
    assert {path.name for path in tmp_path.iterdir()} <= {"notes.txt", ".lock"}


@pytest.mark.slow
def test_a_study_of_another_recipe_is_refused(planted: Recipe, tmp_path: Path) -> None:
    fh.tune(planted, "lr=log(0.01, 0.1)", out=tmp_path, trials=1, objective="loss")
    with pytest.raises(fh.BadInput, match="holds another study: batch_size was 16 and is now 8;"):
        fh.tune(replace(planted, batch_size=8), "lr=log(0.01, 0.1)", out=tmp_path, trials=2, objective="loss")
    with pytest.raises(fh.BadInput, match="holds another study: space was"):
        fh.tune(planted, "lr=log(0.01, 0.2)", out=tmp_path, trials=2, objective="loss")


@pytest.mark.slow
def test_an_objective_without_a_number_ends_the_trial_not_the_count(
    planted: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fh.METRICS._held, "nothing", lambda y_true, y_pred: math.nan)
    with pytest.raises(fh.FedheadError, match=r"all 2 trials failed \(trial 0: nothing is nan"):
        fh.tune(planted, "lr=log(0.01, 0.1)", out=tmp_path, trials=2, objective="nothing")
    with (tmp_path / "trials.csv").open() as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["failed", "failed"]


@pytest.mark.slow
def test_validation_samples_of_a_recipe_are_given_back_unless_callbacks_need_them(
    planted: Recipe, tmp_path: Path
) -> None:
    common: Any = {"trials": 1, "objective": "loss"}
    held = replace(planted, validation=0.4, rounds=1)
    found = fh.tune(held, "lr=log(0.01, 0.1)", out=tmp_path / "a", **common)
    assert found.recipe.validation is None
    with pytest.raises(fh.BadInput, match=r"another study: validation was 0\.4 and is now 0\.15"):
        fh.tune(replace(held, validation=None), "lr=log(0.01, 0.1)", out=tmp_path / "a", **common)
    watched = replace(held, callbacks=("early_stopping(patience=1)",))
    assert fh.tune(watched, "lr=log(0.01, 0.1)", out=tmp_path / "b", **common).recipe.validation == 0.4
    with pytest.raises(fh.BadInput, match="validation"):  # before the search, not before the final training
        fh.tune(replace(watched, validation=None), "lr=log(0.01, 0.1)", out=tmp_path / "c", **common)
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_metrics_of_the_clients_are_of_their_own_validation_samples(planted: Recipe, tmp_path: Path) -> None:
    with pytest.raises(fh.BadInput, match="no trial was begun"):
        fh.tune(planted, "lr=log(0.01, 0.1)", out=tmp_path, minutes=1e-9, objective="client_std")
    found = fh.tune(planted, "lr=log(0.01, 0.1)", out=tmp_path, trials=1, objective="client_std")
    assert 0 <= found.value <= 1
    about = read_about(tmp_path) or {}
    assert (about["objective"], about["direction"]) == ("client_std", "minimize")  # which figures need
    assert read_about(tmp_path / "elsewhere") is None


def join(folder: Path, recipe: Recipe, *space: Dimension) -> Study:
    """Open a study without the search."""
    search = TrialTraining.make(recipe, space, "loss", 0.15, Compute(device="cpu"))
    return Study(folder, search, trials=2, budget=TimeBudget(), sampler="random", pruner="none")


@pytest.mark.slow
def test_a_better_setting_is_trained_finally_beside_the_one_before(tmp_path: Path) -> None:
    recipe = load("digits", ["subset=100", "rounds=1", "local_epochs=1", "clients=2", "model=mlp(hidden=[4])"])
    study = join(tmp_path, recipe, Dimension("lr", "log", (0.01, 1)))
    study.close()
    for lr in (0.1, 0.2, 0.2):
        _train_finally(replace(recipe, lr=lr), study, Compute())
    assert load(tmp_path / "final" / "config.yaml").lr == 0.2
    assert load(tmp_path / "final-before-1" / "config.yaml").lr == 0.1
    assert not (tmp_path / "final-before-2").exists()


@pytest.mark.slow
def test_the_final_training_waits_for_the_trials_of_other_workers(
    planted: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[float] = []

    def final(recipe: Recipe, study: Study, settings: Compute) -> dict[str, Any]:
        trained.append(recipe.lr)
        return {}

    monkeypatch.setattr("fedhead.studies.tune.tune._train_finally", final)
    other = join(tmp_path, planted, Dimension("lr", "log", (0.01, 0.1)))
    job = other.next()
    assert job is not None

    def ends(seconds: float) -> None:
        other.tell(job.trial, Outcome("complete", -1.0))

    monkeypatch.setattr("fedhead.studies.tune.tune.time.sleep", ends)
    fh.tune(planted, "lr=log(0.01, 0.1)", out=tmp_path, trials=2, objective="loss", sampler="random", final=True)
    assert trained == [job.values["lr"]]  # the best of all, which ended last
    other.close()


@pytest.mark.slow
def test_what_is_searched_is_written_as_text(planted: Recipe, tmp_path: Path) -> None:
    with pytest.raises(fh.BadInput, match=r"is no text: write each key .*, such as 'lr=log\(1e-3, 1\)'$"):
        fh.tune(planted, {"lr": "log(0.1, 1)"}, out=tmp_path / "s")  # type: ignore[arg-type]  # as fh.sweep takes it


def test_without_optuna_the_extra_is_named(planted: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(fh.BadInput, match=r"fedhead\[tune\]"):
        fh.tune(planted, "lr=log(0.01, 0.1)", out=tmp_path / "s", trials=1)
    assert not (tmp_path / "s").exists()


WORKER = """
import sys
from pathlib import Path
import fedhead as fh
from fedhead.recipes.recipe import load
recipe = load("digits", ["subset=300", "rounds=6", "local_epochs=1", "model=mlp(hidden=[8])"])
found = fh.tune(recipe, "lr=log(1e-3, 1)", out=sys.argv[1], trials=int(sys.argv[2]), sampler="random", pruner="none")
print(len(found.trials))
"""


def _worker(folder: Path, trials: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORKER), str(folder), str(trials)], env=environment, text=True
    )


@pytest.mark.long
def test_a_killed_study_resumes_and_two_workers_share_one(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    killed = _worker(folder, 6)
    end = time.monotonic() + 120
    while not (folder / "trials.csv").exists() and time.monotonic() < end:
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    workers = [_worker(folder, 8), _worker(folder, 8)]
    assert [worker.wait(200) for worker in workers] == [0, 0]
    with (folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    done = [row for row in rows if row["state"] == "complete"]
    assert len(done) == 8
    assert {row["state"] for row in rows} <= {"complete", "retried"}
    lost = [row["lr"] for row in rows if row["state"] == "retried" and row["lr"]]  # some had no setting yet
    assert set(lost) <= {row["lr"] for row in done}  # what was lost was tried again
    assert {row["reason"] for row in rows if row["state"] == "retried"} <= {"its process was stopped"}
    assert len({row["lr"] for row in done}) == 8  # and nothing twice


CHANGES = [
    "update trial_params set distribution_json = '{'",
    "update trials set state = 'DONE'",
    "update trial_values set value = 'x'",
    "update study_user_attributes set value_json = '[1]'",
]


@pytest.mark.parametrize("statement", quick(CHANGES, CHANGES[0]))
def test_a_changed_study_file_is_refused_in_one_line(tmp_path: Path, statement: str) -> None:
    recipe, space = Recipe(dataset="digits"), Dimension("lr", "log", (0.01, 1))
    join(tmp_path, recipe, space).close()
    study = load_study(tmp_path)
    trial = study.ask()
    trial.suggest_float("lr", 0.01, 1, log=True)
    study.tell(trial, 0.5)
    with closing(sqlite3.connect(tmp_path / "study.db")) as file, file:
        file.execute(statement)
    with pytest.raises(fh.BadInput, match=r"study\.db was changed or damaged .*: begin another study"):
        join(tmp_path, recipe, space)
