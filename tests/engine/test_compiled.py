"""The traced step, as CUDA graphs replay it, against the plain one; all of it on the CPU."""

from __future__ import annotations

import pytest
import torch
from small import federation, network

from fedhead.engine.compiled import trace
from fedhead.engine.graphs import Graphs, Rig, blind
from fedhead.engine.local import local_round
from fedhead.engine.simulation import Simulation
from fedhead.engine.stack import Stack, VmapLift
from fedhead.engine.steps import Carry, Stretch
from fedhead.method import METHODS
from fedhead.optim import SGD
from fedhead.types import Local, Reply


class Replayed(Graphs):
    """The rigs without a GPU: each bucket's step is traced once and called again and again."""

    def __call__(self, stretch: Stretch) -> Carry:
        stretch = blind(stretch)
        rig = Rig(self, stretch)
        rig.graphs = {size: _Traced(rig, size) for size in rig.sizes}  # type: ignore[misc]  # replay() is all it needs
        return rig.train(stretch)


class _Traced:
    def __init__(self, rig: Rig, size: int):
        function, self.arguments = rig._flat(size)
        self.graph = trace(function, self.arguments)

    def replay(self) -> None:
        self.graph(*self.arguments)


@pytest.mark.parametrize("norm", ["batch", pytest.param("group", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_replayed_steps_equal_plain_ones(name: str, norm: str) -> None:
    local = Local(epochs=2, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=1e-3))
    simulation = Simulation(
        federation(), [network(norm, METHODS[name].head)], METHODS[name](), rounds=2, local=local, dtype=torch.float64
    )
    simulation.round(1, Stack())
    job = simulation.jobs(simulation.method, simulation.server, simulation.memory, simulation.holders, 2)[0]
    order = sorted(range(len(job.clients)), key=lambda k: -len(job.rows[k]))
    job = job.take(order)
    found: list[Reply] = [
        local_round(job.program, job.sights(), job.stacked_tables(), VmapLift(), **extra)
        for extra in ({}, {"train": Replayed()})  # type: ignore[list-item]  # the second is a trainer
    ]
    for plain, replayed in zip(found[0], found[1], strict=True):
        left, right = plain.leaves(), replayed.leaves()
        assert left.keys() == right.keys()
        for path, value in left.items():
            torch.testing.assert_close(right[path], value, atol=1e-11, rtol=1e-10)
