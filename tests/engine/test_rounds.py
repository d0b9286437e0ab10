"""The rounds of a run: which are evaluated, where it goes on, and what its stages leave alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from simulations import make_simulation, simulate
from small import federation, network

from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import BadInput, Diverged
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.observer import FinishedRun, Observer, Snapshot
from fedhead.engine.rounds.rounds import run_stage
from fedhead.executors.client.base import Executor, ExecutorReport
from fedhead.executors.client.job import Job
from fedhead.executors.loop import Loop
from fedhead.methods import METHODS
from fedhead.stages import STAGES

LOCAL = LocalTraining(epochs=1, batch_size=8, optimizer=SGD(0.05, 0.9))


def train(rounds: int = 4, method: str = "scaffold", executor: str | Executor = "loop", **settings: Any) -> FinishedRun:
    made = METHODS[method]()
    return simulate(federation(), network("group"), made, rounds=rounds, local=LOCAL, executor=executor, **settings)


@pytest.mark.parametrize(("every", "evaluated"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3, 4]), (9, [4])])
def test_every_so_many_rounds_and_the_last_are_evaluated(every: int, evaluated: list[int]) -> None:
    history = train(evaluate_every=every).rows
    assert [row["round"] for row in history] == [1, 2, 3, 4]
    assert [row["round"] for row in history if "accuracy" in row] == evaluated


def test_a_run_goes_on_from_a_snapshot_and_leaves_it_as_it_was() -> None:
    kept: list[Snapshot] = []

    def keep(now: Snapshot) -> None:
        if now.round == 2:
            clients = {k: state.clone() for k, state in now.clients.items()}
            kept.append(Snapshot(2, now.server.clone(), clients, list(now.history)))

    whole = train(on_round=keep)
    again = train(resume=kept[0])
    assert len(kept[0].history) == 2
    assert [row["round"] for row in again.rows] == [1, 2, 3, 4]
    assert again.rows[:2] == kept[0].history
    for name, value in whole.server.leaves().items():
        assert torch.equal(again.server.leaves()[name], value)


def test_a_stage_leaves_the_trained_run_as_it_was() -> None:
    result = train(rounds=1)
    before = {k: state.clone() for k, state in result.clients.items()}
    server = result.server.clone()
    tuned = run_stage(result.transport, STAGES["finetune"]())
    assert tuned.states.kept.keys() == before.keys()
    for now, then in ((result.server, server), *((result.clients[k], before[k]) for k in before)):
        assert now.leaves().keys() == then.leaves().keys()
        assert all(torch.equal(now.leaves()[name], value) for name, value in then.leaves().items())
    changed = [name for k in before for name in tuned.states[k].leaves() if name not in before[k].leaves()]
    assert changed  # what the clients have tuned is in the stage's states alone


def test_a_stage_that_does_not_fit_is_refused_before_training() -> None:
    class Never(STAGES["finetune"]):  # type: ignore[misc, name-defined]  # the class comes from a registry
        def check(self, models: Any, federation: Any) -> None:
            raise BadInput("never")

    class Started(Observer):
        def start(self, name: str, resume: Snapshot | None) -> None:
            pytest.fail("the run has begun")

    with pytest.raises(BadInput, match="never"):
        train(stages=[Never()], observers=[Started()])


class Watching(Loop):
    """A loop that notes the rounds of its jobs."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def train(self, job: Job) -> list[Reply]:
        self.rounds.append(job.round)
        return super().train(job)


def test_stages_come_as_the_round_after_the_last() -> None:
    worker = Watching()
    train(rounds=2, executor=worker, stages=[STAGES["finetune"]()])
    assert worker.rounds == [1, 2, 3]


class Preparing(Loop):
    """A loop that says it has spent a thousand seconds of each round on compiling."""

    rounds = 0

    def train(self, job: Job) -> list[Reply]:
        self.rounds += 1
        return super().train(job)

    def report(self) -> ExecutorReport:
        return ExecutorReport(compile_seconds=1000.0 * self.rounds)


def test_preparation_is_no_training() -> None:
    result = train(rounds=2, executor=Preparing())
    assert result.compile_seconds == 2000.0
    assert all(-1000 < row["seconds"] < -500 for row in result.rows)  # that much less than the moment it took


@pytest.mark.parametrize(("batch_size", "told"), [(8, False), (1000, True)])
def test_batches_larger_than_any_client_are_told_of(
    batch_size: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    local = LocalTraining(epochs=1, batch_size=batch_size, optimizer=SGD(0.05))
    make_simulation(federation(), [network("group")], METHODS["fedavg"](), rounds=1, local=local)
    assert ("trains the same in less time" in caplog.text) == told


@pytest.mark.parametrize("name", ["local", "ditto"])
def test_numbers_that_a_client_keeps_are_checked_like_those_it_sends(name: str) -> None:
    method = METHODS[name](**({"lam": 1e38} if name == "ditto" else {}))  # the model it sends stays finite
    local = LocalTraining(epochs=3, batch_size=4, optimizer=SGD(1e30 if name == "local" else 1e-3))
    with pytest.raises(Diverged, match=r"client 0, round 1: '(own|personal)/.*' is not finite any more; .*\(lr\)"):
        simulate(federation(), network("group"), method, rounds=3, local=local, executor="loop")


def test_a_server_that_leaves_the_finite_numbers_is_named() -> None:
    with pytest.raises(Diverged, match=r"round 1, the server: 'model/.*' is not finite any more"):
        simulate(federation(), network("group"), Overflowing(), rounds=1, local=LOCAL, executor="loop")


@dataclass(frozen=True)
class Overflowing(Method):
    """FedAvg whose server divides by 0."""

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        return super().aggregate(server, replies, task).map(lambda t: t / 0)
