"""Several views of a batch that pass through a model as one batch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from simulations import make_simulation
from small import federation, network
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Batch
from fedhead.core.tree.tree import Weights
from fedhead.engine.rounds.rounds import train_round
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack

LOCAL = LocalTraining(epochs=1, batch_size=4)


@dataclass(frozen=True)
class Views(Method):
    """Trains on a sample and its negative, joined by hand or by `apply_to_views`."""

    by_hand: bool = False

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        if self.by_hand:
            out = client.apply(w, torch.cat([batch.x, -batch.x]), weight=batch.weight.repeat(2))
            one, two = out.logits.chunk(2)
        else:
            one, two = (view.logits for view in client.apply_to_views(w, batch.x, -batch.x))
        return client.loss(one, batch) + 2 * client.loss(two, batch)


@pytest.mark.parametrize("executor", [Loop(), Stack()])
def test_views_are_one_batch_also_where_it_has_padding(executor: Executor) -> None:
    trained = []
    for by_hand in (True, False):
        simulation = make_simulation(
            federation(), [network("batch")], Views(by_hand), rounds=1, local=LOCAL, dtype=torch.float64
        )
        train_round(simulation.using(executor), 1)
        trained.append(simulation.server["model"])
    for name, t in trained[0].items():
        torch.testing.assert_close(t, trained[1][name], atol=1e-12, rtol=1e-12)


@dataclass(frozen=True)
class Uneven(Method):
    """Gives views with so many rows."""

    rows: tuple[int, ...]

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        (first, *_) = client.apply_to_views(w, *(batch.x[:count] for count in self.rows))
        return first.logits.sum()


@pytest.mark.parametrize(("rows", "what"), [((4, 2), "got 4 and 2 rows"), ((), "got no rows")])
def test_views_of_other_rows_are_refused(rows: tuple[int, ...], what: str) -> None:
    simulation = make_simulation(federation(), [network("group")], Uneven(rows), rounds=1, local=LOCAL)
    with pytest.raises(BadInput, match=what):
        train_round(simulation.using(Loop()), 1)
