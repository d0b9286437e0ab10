"""A stack's replies are aggregated before anybody waits for a GPU to say whether they are finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from simulations import make_simulation
from small import federation, network

import fedhead as fh
from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import Diverged
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.job import Job
from fedhead.executors.client.reply_set import ReplySet
from fedhead.executors.stack.stack import Stack

EVENTS: list[str] = []


@dataclass(frozen=True)
class Noting(fh.FedAvg):
    """FedAvg that notes when it aggregates; a number of its replies may be NaN."""

    bad: str = ""

    def finish(self, w: Weights, client: Client) -> Reply:
        """Spoil what the clients with most samples of class 0 send or keep."""
        reply = super().finish(w, client)
        nan = torch.where(client.counts[0] > 3, torch.nan, 0.0)
        if self.bad == "send":
            return reply._replace(send=reply.send.map(lambda t: t + nan))
        return reply._replace(keep=Tree(mark=nan + torch.zeros(2))) if self.bad == "keep" else reply

    def init_client(self, w: Weights, task: Task) -> Tree:
        """Keep two numbers, if these are to be spoiled."""
        return Tree(mark=torch.zeros(2)) if self.bad == "keep" else Tree()

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Refuse NaN, as a solver would."""
        EVENTS.append("aggregate")
        new = super().aggregate(server, replies, task)
        if not new.finite():
            raise torch.linalg.LinAlgError("input contained non-finite values")
        return new


@pytest.fixture(autouse=True)
def _note_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    plainly = ReplySet.finite
    monkeypatch.setattr(ReplySet, "finite", lambda replies: EVENTS.append("finite?") or plainly(replies))


def simulation(**settings: Any) -> Simulation:
    EVENTS.clear()
    made = make_simulation(
        federation(), [network("group")], Noting(**settings), rounds=1, local=LocalTraining(epochs=1)
    )
    return made.using(Stack())


def test_replies_are_aggregated_before_it_is_asked_whether_they_are_finite() -> None:
    made = simulation()
    train_round(made, 1)
    assert EVENTS == ["aggregate", "finite?"]


@pytest.mark.parametrize("bad", ["send", "keep"])
def test_a_client_whose_reply_is_not_finite_is_named_whatever_the_aggregate_makes_of_it(bad: str) -> None:
    made = simulation(bad=bad)
    first = next(k for k, own in enumerate(made.clients.counts.tolist()) if own[0] > 3)
    before = made.server
    with pytest.raises(Diverged, match=f"client {first}, round 1: .* is not finite"):
        train_round(made, 1)
    assert made.server is before, "nothing has changed"
    assert not made.states.kept


class Spoiling(Stack):
    """A user's stack, which changes what clients keep."""

    def train_all(self, jobs: list[Job]) -> list[Sequence[Reply]]:
        """Divide by 0."""
        return [
            [reply._replace(keep=reply.keep.map(lambda t: t / 0)) for reply in found]
            for found in super().train_all(jobs)
        ]


def test_what_an_own_executor_makes_of_replies_is_looked_at_too() -> None:
    local = LocalTraining(epochs=1)
    made = make_simulation(federation(), [network("group")], fh.Scaffold(), rounds=1, local=local, executor=Spoiling())
    with pytest.raises(Diverged, match=r"client 0, round 1: .* is not finite"):
        train_round(made, 1)
