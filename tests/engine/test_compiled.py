"""The traced step, as CUDA graphs replay it, against the plain one; all of it on the CPU."""

from __future__ import annotations

import pytest
import torch
from small import federation, network

from fedhead.engine.compiled import trace
from fedhead.engine.graphs import Graphs, Rig
from fedhead.engine.job import Job
from fedhead.engine.local import local_round
from fedhead.engine.simulation import Simulation
from fedhead.engine.stack import Stack, VmapLift
from fedhead.engine.steps import Stretch, Trainer, train_eagerly
from fedhead.method import METHODS
from fedhead.optim import SGD
from fedhead.types import Local


class Replayed(Graphs):
    """The rigs without a GPU: each bucket's step is traced once and called again and again."""

    def rig(self, part: Stretch, place: int) -> Rig:
        rig = Rig(self, part)
        rig.graphs = {size: _Traced(rig, size) for size in rig.sizes}  # type: ignore[misc]  # replay() is all it needs
        return rig


class _Traced:
    def __init__(self, rig: Rig, size: int):
        function, self.arguments = rig._flat(size)
        self.graph = trace(function, self.arguments)

    def replay(self) -> None:
        self.graph(*self.arguments)


def prepared(name: str, norm: str) -> Job:
    """The second round of a few clients, longest first."""
    local = Local(epochs=2, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=1e-3))
    simulation = Simulation(
        federation(), [network(norm, METHODS[name].head)], METHODS[name](), rounds=2, local=local, dtype=torch.float64
    )
    simulation.round(1, Stack())
    job = simulation.jobs(simulation.method, simulation.server, simulation.memory, simulation.holders, 2)[0]
    return job.take(sorted(range(len(job.clients)), key=lambda k: -len(job.rows[k])))


def assert_equal_replies(job: Job, *trainers: Trainer) -> None:
    plain, *others = [
        local_round(job.program, job.sights(), job.stacked_tables(), VmapLift(), train)
        for train in (train_eagerly, *trainers)
    ]
    for other in others:
        for mine, theirs in zip(other, plain, strict=True):
            assert mine.leaves().keys() == theirs.leaves().keys()
            for path, value in theirs.leaves().items():
                torch.testing.assert_close(mine.leaves()[path], value, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("norm", ["batch", pytest.param("group", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_replayed_steps_equal_plain_ones(name: str, norm: str) -> None:
    assert_equal_replies(prepared(name, norm), Replayed(), Replayed(width=3))  # one stack of four, two of two


def test_a_part_that_lacks_clients_is_topped_up() -> None:
    assert_equal_replies(prepared("moon", "batch").take([0, 1, 2]), Replayed(width=2))
