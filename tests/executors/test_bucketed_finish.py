"""Replies of a stack finished whole and in groups of similar sizes: they are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from same_trees import assert_same
from simulations import make_simulation
from small import CLASSES, network

import fedhead as fh
from fedhead.algorithm.client import Client
from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree, Weights
from fedhead.executors.client.job import Job
from fedhead.executors.stack.vectorize import VmapVectorizer, similar_sizes
from fedhead.methods import METHODS

SIZES = [40, 30, 12, 11, 3, 1]


def job(name: str) -> Job:
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 256, (sum(SIZES), 1, 6, 6)).astype(np.uint8), np.arange(sum(SIZES)) % CLASSES
    rows = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    federation = fh.Federation.from_clients([(x[own], y[own]) for own in rows], classes=CLASSES, test=(x[:9], y[:9]))
    local = LocalTraining(epochs=1, batch_size=8, optimizer=SGD(lr=0.1))
    model = network("batch", METHODS[name].head)
    simulation = make_simulation(
        federation, [model], METHODS[name](), rounds=1, local=local, device=torch.device("cpu")
    )
    return simulation.jobs_of_round(1)[0]


@pytest.mark.parametrize(("name", "reads"), [("fednh", True), ("fedproto", True), ("fedavg", False), ("moon", False)])
def test_groups_send_what_the_whole_stack_does(name: str, reads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, samples, replies = job(name), [0], [0]
    plain_total, plain_finish = Client.total, METHODS[name].finish

    def total(self: Client, fn: Any) -> Tree:
        found = plain_total(self, fn)
        samples[0] += self._indices.shape[-1]
        return found

    def finish(self: Any, w: Weights, client: Client) -> fh.Reply:
        reply = plain_finish(self, w, client)
        replies[0] += 1
        return reply

    monkeypatch.setattr(Client, "total", total)
    monkeypatch.setattr(METHODS[name], "finish", finish)
    assert [len(rows) for rows in asked.indices] == SIZES
    inputs = asked.stacked_inputs()
    with torch.no_grad():
        w = VmapVectorizer().start(asked.program)(inputs)
        whole = VmapVectorizer().finish(asked.program)(w, inputs)
        at_once, samples[0], replies[0] = samples[0], 0, 0
        grouped = VmapVectorizer(SIZES).finish(asked.program)(w, inputs)
    assert bool(at_once) == reads
    assert samples[0] == (40 + 12 + 3 + 1 if reads else 0), "the longest client of each group"
    assert replies[0] == (4 if reads else 1), "nothing is computed twice"
    for mine, theirs in zip(grouped, whole, strict=True):
        assert_same(mine, theirs, 1e-5, 1e-5)


def test_clients_of_one_size_stay_together() -> None:
    assert similar_sizes([7, 7, 7]) == [slice(0, 3)]
    assert similar_sizes([7]) == [slice(0, 1)]
    assert similar_sizes([4, 9, 4]) == [slice(0, 3)]  # by the first: what follows may be larger
