"""For tests of runs that train together: a stack that notes what it trains, and the comparison with a run alone."""

from __future__ import annotations

from collections.abc import Sequence

from same_trees import assert_same

from fedhead.algorithm.phase import Reply
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.job import Job
from fedhead.executors.stack.stack import Stack


class CountingStack(Stack):
    """Notes how many clients each stack that it has trained had, and the names of the hyperparameters they differ in.

    It leaves `run` and `run_all` alone: with one of a user's own, replies and states would not stay in one stack, and
    tests would not see what runs do.
    """

    def __init__(self) -> None:
        super().__init__()
        assert self.keeps_stacks
        self.widths: list[int] = []
        self.names: set[str] = set()

    def _run_stack(self, job: Job) -> Sequence[Reply]:
        found = super()._run_stack(job)
        self.widths.append(len(job.clients))
        self.names |= set(job.hyperparameters[0]) if job.hyperparameters else set()
        return found


def check_alone(found: Simulation, alone: Simulation, rounds: int) -> None:
    """Train a simulation alone, and require its server's and its clients' states of one that trained with others."""
    for number in range(1, rounds + 1):
        train_round(alone.using(Stack()), number)
    assert_same(found.server, alone.server, 1e-10, 1e-10)
    assert found.states.kept.keys() == alone.states.kept.keys()
    for k, state in alone.states.kept.items():
        assert_same(found.states.kept[k], state, 1e-10, 1e-10)
