"""Trials that fail: each is recorded with its error, the others go on with their own numbers, the end names them."""

from __future__ import annotations

import csv
import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

import fedhead as fh
from fedhead.cli import call
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.recipe import Recipe, load
from fedhead.recipes.search_space import Dimension
from fedhead.studies.time_budget import TimeBudget
from fedhead.studies.tune import study as studies
from fedhead.studies.tune.study import Study
from fedhead.studies.tune.trial_training import TrialTraining
from fedhead.studies.tune.trials import Outcome

pytest.importorskip("optuna")
SMALL = ["subset=60", "rounds=1", "local_epochs=1", "clients=2", "model=mlp(hidden=[4])"]


@dataclass(frozen=True)
class Breaks(fh.Method):
    """FedAvg that raises in the loss or on the server, by its setting."""

    kind: str = "good"
    broken: ClassVar[bool] = True

    def loss(self, w: fh.Weights, batch: fh.Batch, client: fh.Client) -> Tensor:
        if self.broken and self.kind == "loss":
            raise ValueError("no such loss\nmore lines")
        return super().loss(w, batch, client)

    def aggregate(self, server: fh.Tree, replies: fh.Replies, task: fh.Task) -> fh.Tree:
        if self.broken and self.kind == "server":
            raise KeyError("no such mean")
        return super().aggregate(server, replies, task)


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setitem(fh.METHODS._held, "breaks", Breaks)
    return load("digits", [*SMALL, "method=breaks"])


def tune(recipe: Recipe, *space: str, out: Path, **more: Any) -> fh.TuneResult:
    usual: dict[str, Any] = {
        "sampler": "random",
        "pruner": "none",
        "objective": "loss",
        "seed": 7,
    }
    return fh.tune(recipe, *space, out=out, compute=Compute(device="cpu", executor="stack"), **(usual | more))


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def outcomes(recipe: Recipe, *chosen: dict[str, Any]) -> list[Outcome]:
    """Train trials without a study."""
    search = TrialTraining.make(recipe, [], "loss", 0.15, Compute(device="cpu", executor="stack"))
    return [search.run(values, lambda number, value: False) for values in chosen]


def test_a_trial_that_raises_fails_and_those_beside_it_keep_their_numbers(breaks: Recipe) -> None:
    good = [{"method.kind": "good", "lr": lr} for lr in (0.1, 0.2)]
    loss, server = ({"method.kind": kind, "lr": 0.1} for kind in ("loss", "server"))
    first, one, second, other = outcomes(breaks, loss, good[0], server, good[1])
    assert [one, other] == outcomes(breaks, *good)  # bit by bit
    assert (one.state, first.state, second.state) == ("complete", "failed", "failed")
    assert (first.value, first.retryable) == (None, True)
    assert first.reason.startswith("Breaks.loss (test_tune_failures.py, line")  # the user's own line
    assert first.reason.endswith("ValueError: no such loss")
    assert second.reason.endswith("KeyError: 'no such mean'")


def test_a_model_that_can_not_be_built_with_some_values_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TrialTraining.experiment

    def experiment(self: TrialTraining, values: dict[str, Any]) -> Any:
        if values["lr"] > 0.15:
            raise RuntimeError("too wide")
        return whole(self, values)

    monkeypatch.setattr(TrialTraining, "experiment", experiment)
    found = outcomes(load("digits", SMALL), {"lr": 0.2}, {"lr": 0.1}, {"lr": 0.16})
    assert [one.state for one in found] == ["failed", "complete", "failed"]
    assert found[0].reason.endswith("RuntimeError: too wide")


@pytest.mark.slow
def test_a_trial_that_diverges_has_failed_and_is_not_tried_again(tmp_path: Path) -> None:
    recipe, space = load("digits", [*SMALL, "batch_size=4"]), "lr=choice(0.1, 1e30)"
    found = tune(recipe, space, out=tmp_path, trials=4)
    states = {one.values["lr"]: one.state for one in found.trials}
    assert states == {0.1: "complete", 1e30: "failed"}
    assert found.best.values["lr"] == 0.1
    assert "diverged: client 0, round 1" in found.failed[0].reason
    again = tune(recipe, space, out=tmp_path, trials=4)
    assert again.trials == found.trials


@pytest.mark.slow
def test_the_same_command_tries_again_what_failed_by_an_error(
    breaks: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tune(breaks, "method.kind=choice(good, server)", out=tmp_path, trials=4)
    monkeypatch.setattr(Breaks, "broken", False)
    second = tune(breaks, "method.kind=choice(good, server)", out=tmp_path, trials=4)
    assert not second.failed
    states = [one.state for one in second.trials]
    assert states.count("complete") == 4
    assert states.count("retried") == len(first.failed)
    assert [one.values for one in second.trials[4:]] == [one.values for one in first.failed]
    assert [row["state"] for row in rows(tmp_path)] == states


@pytest.mark.slow
def test_a_worker_that_joins_another_does_not_try_its_failed_trials_again(tmp_path: Path) -> None:
    def join() -> Study:
        search = TrialTraining.make(
            Recipe(dataset="digits"), [Dimension("lr", "log", (0.01, 1))], "loss", 0.15, Compute()
        )
        return Study(tmp_path, search, trials=3, budget=TimeBudget(), sampler="random", pruner="none")

    one = join()
    first, second = one.next(), one.next()
    assert first is not None
    assert second is not None
    one.finish(first, Outcome("failed", reason="out of memory", retryable=True))
    other = join()
    assert [trial.state for trial in other.trials()] == ["failed", "running"]
    third = other.next()
    assert third is not None
    assert other.next() is None  # a failed trial counts
    one.finish(second, Outcome("complete", 1.0))
    other.finish(third, Outcome("complete", 2.0))
    for study in (one, other):
        study.close()
    alone = join()
    assert [trial.state for trial in alone.trials()] == ["retried", "complete", "complete", "waiting"]
    alone.close()


def test_a_trial_that_was_taken_for_lost_ends_without_an_error(tmp_path: Path) -> None:
    search = TrialTraining.make(Recipe(dataset="digits"), [Dimension("lr", "log", (0.01, 1))], "loss", 0.15, Compute())
    study = Study(tmp_path, search, trials=2, budget=TimeBudget(), sampler="random", pruner="none")
    job = study.next()
    assert job is not None
    study.tell(job.trial, Outcome("failed"))  # as another process does after 30 seconds without a heartbeat
    assert study.report(job.trial, 1, 0.5), "it is not trained on"
    study.finish(job, Outcome("complete", 0.5))
    assert [trial.state for trial in study.trials()] == ["failed"]
    study.close()


@pytest.mark.slow
def test_a_search_whose_trials_all_fail_stops_with_one_line(
    breaks: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "MAX_FAILED", 3)
    with pytest.raises(
        fh.FedheadError, match="all 3 trials failed and the search stopped before the other 5"
    ) as caught:
        tune(breaks, "method.kind=choice(server)", "lr=uniform(0.1, 0.2)", out=tmp_path, trials=8)
    assert "trial 0: Breaks.aggregate (test_tune_failures.py, line" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [row["state"] for row in rows(tmp_path)] == ["failed"] * 3


@pytest.mark.slow
def test_an_objective_that_no_trial_can_have_ends_the_search_at_once(tmp_path: Path) -> None:
    recipe = load("digits", [*SMALL, "method=local"])
    with pytest.raises(fh.BadInput, match="objective accuracy: local has none here"):
        tune(recipe, "lr=uniform(0.1, 0.2)", out=tmp_path, trials=4, objective="accuracy")
    assert [row["state"] for row in rows(tmp_path)] == ["failed"]


def test_the_command_says_how_a_search_goes_on_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Study, *words: Any, **settings: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "study.db")

    monkeypatch.setattr(Study, "__init__", full)
    assert call(["tune", "digits", *SMALL, "lr=uniform(0.1, 0.2)", "--out", str(tmp_path / "s")]) == 3
    told = capsys.readouterr().err
    assert told == (
        "error: [Errno 28] No space left on device: 'study.db'; the same command goes on where it stopped\n"
    )


@pytest.mark.slow
def test_the_command_names_the_failed_trials_and_exits_with_0_where_there_is_a_result(
    breaks: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", "digits", *SMALL, "method=breaks", "method.kind=choice(good, server)", "--sampler", "random"]
    assert call([*words, "--trials", "4", "--out", str(tmp_path / "s"), "--objective", "loss"]) == 0
    said = capsys.readouterr()
    assert "best        loss" in said.out
    failed = [row for row in rows(tmp_path / "s") if row["state"] == "failed"]
    assert f"trial {failed[0]['trial']}    failed            –  method.kind=server  Breaks.aggregate" in said.err
    last = said.err.splitlines()[-1]
    assert last.startswith(f"warning: {len(failed)} of 4 trials failed; trial {failed[0]['trial']} (method")
    assert last.endswith("fix it, and the same command tries it again")


@pytest.mark.slow
def test_one_trial_that_diverged_is_no_error_of_the_command_and_a_study_without_a_result_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [word for word in SMALL if not word.startswith("rounds=")]
    words = ["tune", "digits", *small, "rounds=3", "--sampler", "random", "--trials", "4"]
    assert call([*words, "lr=choice(0.1, 1e30)", "--out", str(tmp_path / "some")]) == 0
    assert {row["state"] for row in rows(tmp_path / "some")} == {"complete", "failed"}
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].startswith("warning: ")
    assert "of 4 trials failed" in said.err
    assert call([*words, "lr=choice(1e30, 1e31)", "--out", str(tmp_path / "none")]) == 1
    assert not (tmp_path / "none" / "best.yaml").exists()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"device": "cuda:99"}, "device cuda:99: "),
        ({"precision": "fp16"}, "unknown precision 'fp16'"),
        ({"compile": "always"}, "unknown compile 'always'"),
    ],
)
def test_settings_that_no_trial_can_have_are_refused_before_the_first(
    wrong: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    recipe, asked = load("digits", SMALL), {"device": "cpu", **wrong}
    with pytest.raises(fh.BadInput, match=sentence):
        fh.tune(recipe, "lr=log(1e-3, 1)", out=tmp_path / "study", compute=Compute(**asked))
    assert not (tmp_path / "study").exists()
