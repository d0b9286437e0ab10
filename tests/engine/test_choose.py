"""How an executor is chosen."""

from __future__ import annotations

import pytest
from small import federation, network

from fedhead.engine import choose
from fedhead.engine.loop import Loop
from fedhead.engine.simulation import Simulation
from fedhead.engine.stack import Stack
from fedhead.errors import BadInput
from fedhead.method import METHODS
from fedhead.types import Local


def simulation(rounds: int = 1, participation: float = 1.0) -> Simulation:
    local = Local(epochs=3, batch_size=4)
    return Simulation(
        federation(), [network("group")], METHODS["fedavg"](), rounds=rounds, local=local, participation=participation
    )


def test_auto_times_the_executors_and_takes_one() -> None:
    assert choose.executor("auto", simulation()).name in ("loop", "stack")


def test_one_client_needs_no_stack() -> None:
    assert isinstance(choose.executor("auto", simulation(participation=0.1)), Loop)


def test_an_executor_that_is_given_is_taken() -> None:
    given = Loop()
    assert choose.executor(given, simulation()) is given


def test_only_long_runs_are_compiled() -> None:
    # 9, 5, 0, 14 and 3 samples are 3 + 2 + 0 + 4 + 1 batches of 4, three epochs of them a round
    assert choose.client_steps(simulation(rounds=2)) == 60
    short, long = choose.named("stack", simulation()), choose.named("stack", simulation(rounds=10_000))
    assert isinstance(short, Stack)
    assert isinstance(long, Stack)
    assert not short.graphs.compile
    assert long.graphs.compile


@pytest.mark.parametrize(("name", "words"), [("stak", "did you mean 'stack'"), ("lanes", "need a GPU")])
def test_what_cannot_be_had_is_refused(name: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        choose.executor(name, simulation())
