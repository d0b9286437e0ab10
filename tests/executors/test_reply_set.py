"""A cohort that trains in one stack is aggregated as one, with the numbers of single replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from same_trees import assert_same
from simulations import make_simulation
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree import tree_rows
from fedhead.core.tree.tree import Tree, unstack
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.rounds.transport import Context, Received
from fedhead.executors.client.reply_set import ReplySet
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05, 0.9))


class Apart(Simulation):
    """A simulation that takes replies apart, and may change those of a client."""

    factor = 1.0

    def exchange(self, context: Context, cohort: list[int]) -> Received:
        """Replace each reply by itself, and that of client 1 by a multiple of it."""
        received = super().exchange(context, cohort)
        assert received.replies.whole_stacks
        replies = {
            k: reply._replace(send=reply.send.map(torch.mul, self.factor)) if k == 1 else reply
            for k, reply in received.replies.items()
        }
        return replace(received, replies=ReplySet.of(replies))


def trained(kind: type[Simulation], method: str = "fedavg") -> tuple[Simulation, list[Mapping[str, object]]]:
    settings = {"kind": kind, "rounds": 2, "local": LOCAL, "executor": Stack()}
    made = make_simulation(federation(), [network("batch")], METHODS[method](), **settings)
    rows = [train_round(made, number) for number in (1, 2)]
    return made, [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedproto"])
def test_the_same_numbers_as_of_single_replies(method: str) -> None:
    (whole, rows), (apart, expected) = trained(Simulation, method), trained(Apart, method)
    assert rows == expected
    assert_same(whole.server, apart.server)
    assert whole.states.kept.keys() == apart.states.kept.keys()
    for k, state in apart.states.kept.items():
        assert_same(whole.states.kept[k], state)


def test_no_reply_is_taken_apart_where_the_server_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def noted(tree: Tree, count: int) -> list[Tree]:
        seen.extend(tree.leaves())
        return unstack(tree, count)

    monkeypatch.setattr(tree_rows, "unstack", noted)
    trained(Simulation)
    assert seen == []
    trained(Apart)
    assert "model/classifier.weight" in seen


def test_a_reply_that_was_replaced_counts() -> None:
    class Larger(Apart):
        factor = 3.0

    larger, honest = (trained(kind)[0].server["model"]["classifier.weight"] for kind in (Larger, Apart))
    assert not torch.equal(larger, honest)


def test_replies_of_a_stack_are_a_mapping() -> None:
    simulation = trained(Simulation)[0]
    replies = simulation.exchange(simulation.context(2), [0, 1, 3]).replies
    assert list(replies) == [0, 1, 3]
    assert (1 in replies, 2 in replies) == (True, False)
    assert replies[1].samples == len(simulation.clients.federation.indices[1])
    assert replies.losses().keys() == {0, 1, 3}
    left = replies.without({0: "a fault"})
    assert (list(left), len(left), len(left.sent), 0 in left) == ([1, 3], 2, 2, False)
    assert_same(left[3].send, replies[3].send)
