"""Stages after a run that stopped, or that ends with an earlier round, are those of a run of so many rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulations import RowFunction
from tiers import quick

import fedhead as fh
from fedhead.core.tree.tree import Tree
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.rounds import run_stage
from fedhead.executors.stack.stack import Stack
from fedhead.metrics.records import StageResult
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs.reopen import reopen
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder

DECAY = {"lr": 0.1, "lr_decay": 0.5, "batch_size": 8}


@dataclass(frozen=True)
class StopAfter(fh.Callback):
    """Stops after a round, and keeps the models of one."""

    round: int = 2
    kept: int | None = None

    def after_round(self, row: Any, memory: dict[str, Any]) -> Any:
        """Compare the round's number."""
        stop = fh.STOP if row["round"] == self.round else None
        keep = fh.KEEP if row["round"] == self.kept else None
        return stop or keep


def federation() -> fh.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5)).astype(np.float32)
    y = (x[:, 0] + 0.5 * rng.normal(size=200) > 0).astype(np.int64)
    return fh.Federation.from_arrays(x, y, "iid", clients=4, client_test=0.3)


def run(rounds: int, **settings: Any) -> fh.Result:
    settings = {**DECAY, "stages": ["finetune"], "executor": "loop", "device": "cpu", **settings}
    return fh.run(federation(), "mlp", rounds=rounds, **settings)


def same(found: StageResult, expected: StageResult) -> None:
    """Compare what the clients have tuned, to the last bit."""
    assert found.metrics["clients"] == expected.metrics["clients"]
    assert found.metrics["train_loss"] == expected.metrics["train_loss"]
    for k in range(4):
        _same(found.states[k], expected.states[k])


def _same(found: Tree, expected: Tree) -> None:
    mine, theirs = found.leaves(), expected.leaves()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(t, theirs[name]) for name, t in mine.items())


STOPS: dict[str, dict[str, Any]] = {
    "callback": {"callbacks": [StopAfter(2)]},
    "on_round": {"on_round": lambda now: fh.STOP if now.round == 2 else None},
    "kept": {"callbacks": [StopAfter(4, kept=2)]},
    "kept of all rounds": {"callbacks": [StopAfter(0, kept=2)]},
}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["loop", "stack"])
@pytest.mark.parametrize("how", STOPS)
def test_stages_of_the_run_and_those_after_it_are_as_after_a_run_of_so_many_rounds(
    how: str, executor: str, tmp_path: Path
) -> None:
    short = run(2, executor=executor)
    for out in (None, tmp_path / "run"):
        stopped = run(6, executor=executor, out=out, **STOPS[how])
        same(stopped.stages["finetune"], short.stages["finetune"])
        same(stopped.calibrate(fh.FineTune()), short.stages["finetune"])
    loaded = fh.load(tmp_path / "run", federation=federation(), device="cpu")
    same(loaded.calibrate("finetune"), short.stages["finetune"])
    mine, theirs = (one.module(client=1, stage="finetune").state_dict() for one in (loaded, short))
    assert all(torch.equal(t, theirs[name]) for name, t in mine.items())


def test_a_run_that_was_not_stopped_is_followed_by_the_round_after_its_last(tmp_path: Path) -> None:
    result = run(3, out=tmp_path / "run")
    assert result.trained.round == 3
    loaded = fh.load(tmp_path / "run", federation=federation(), device="cpu")
    assert loaded.trained.round == 3
    same(loaded.calibrate("finetune"), result.stages["finetune"])
    assert run(0).trained.round == 0


SCHEDULES: list[dict[str, Any]] = [{"lr_schedule": "cosine"}, {"lr_schedule": "step(1, 0.5)"}, {"warmup_rounds": 4}]


@pytest.mark.parametrize("schedule", quick(SCHEDULES, SCHEDULES[0]))
def test_schedules_keep_the_planned_rounds_and_stages_continue_them(schedule: dict[str, Any]) -> None:
    stopped, whole = run(6, **schedule, callbacks=[StopAfter(2)]), run(6, **schedule)
    assert [row["lr"] for row in stopped.rows] == [row["lr"] for row in whole.rows[:2]]
    clients, planned = stopped.trained.clients, [row["lr"] for row in whole.rows]
    assert clients.lr(3) == planned[2]
    assert clients.lr(7) == pytest.approx(planned[5] * 0.5)  # the schedule's last factor, one more of the decay
    first, second = stopped.trained.after("finetune", 0), whole.trained.after("finetune", 0)
    assert [state._client(0).lr.item() for state in (first, second)] == pytest.approx([planned[2], clients.lr(7)])


# -- run folders ------------------------------------------------------------------------------------------
OWN = """import fedhead as fh
from dataclasses import dataclass

@dataclass(frozen=True)
class StopAfter(fh.Callback):
    round: int = 2

    def after_round(self, row, memory):
        return fh.STOP if row["round"] == self.round else None
"""
STACK = Compute(executor="stack", device="cpu")


def recipe(folder: Path, *words: str) -> Recipe:
    (folder / "own.py").write_text(OWN)
    small = ["subset=300", "clients=3", "model.hidden=[8]", "lr=0.1", "lr_decay=0.5", "client_test=0.3"]
    found = load("digits", [*small, "stages=[finetune]", *words])
    return replace(found, folders=(folder,))


class Killed(BaseException):
    """Stands for a kill."""


def test_a_run_folder_that_is_resumed_or_opened_again(tmp_path: Path) -> None:
    expected = execute(recipe(tmp_path, "rounds=2"), tmp_path / "short", STACK)["stages"]["finetune"]["clients"]
    stopped = recipe(tmp_path, "rounds=8", "callbacks=[own.py:StopAfter(2)]")

    def kill(row: Any) -> None:
        if row["round"] == 2:  # its checkpoint is written
            raise Killed

    with pytest.raises(Killed):
        execute(stopped, tmp_path / "run", STACK, observers=[RowFunction(kill)])
    assert not RunFolder.open(tmp_path / "run").finished
    assert execute(stopped, tmp_path / "run", STACK, resume=True)["stages"]["finetune"]["clients"] == expected
    trained = reopen(tmp_path / "run", device="cpu")  # as the tables' stages are run
    assert trained.run(fh.FineTune()).metrics["clients"] == expected


def test_a_stage_begins_no_round_of_the_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would decide, beside a run that goes on, whether that run's round is compiled."""
    stack, begun = Stack(), list[int]()
    monkeypatch.setattr(stack.graphs, "begin_round", lambda number, compiled=None: begun.append(number))
    result = run(2, executor=stack)
    run_stage(result.trained.with_data(), fh.FineTune())
    assert begun == [1, 2]
