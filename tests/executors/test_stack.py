"""The stack: how many clients it takes at once, also when memory is short, on which streams, and what it returns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from same_trees import assert_same
from simulations import make_simulation
from small import federation, network

from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.finite import FiniteCheck
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.job import Job
from fedhead.executors.client.reply_set import ReplyRows
from fedhead.executors.stack.stack import Stack, _default_size_for, by_steps
from fedhead.methods import METHODS


class Small(Stack):
    """A stack on a device that holds only so many clients at once."""

    def __init__(self, budget: int):
        super().__init__()
        self.budget = budget

    def _train_stack(self, job: Job) -> ReplyRows:
        if len(job.clients) > self.budget:
            raise torch.OutOfMemoryError("full")
        return super()._train_stack(job)


def simulate(stack: Stack) -> Simulation:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
    made = make_simulation(
        federation(), [network("batch")], METHODS["moon"](), rounds=1, local=local, dtype=torch.float64
    )
    train_round(made.using(stack), 1)
    return made


def test_out_of_memory_halves_the_stack_says_so_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    stack = Small(budget=2)
    found, plain = simulate(stack), simulate(Stack())
    assert stack.size == 2
    assert "out of memory with 4 clients at once: continuing with 2" in caplog.text
    assert_same(found.server, plain.server, 1e-10, 1e-10)


@pytest.mark.parametrize(
    ("device", "weights", "size"),
    [("cpu", 1000, 64), ("cuda", 1000, 1024), ("cuda", 500_000, 214), ("cuda", 10_000_000, 128)],
)
def test_a_gpu_takes_more_clients_of_a_small_model(device: str, weights: int, size: int) -> None:
    """In 4 GiB there is room for 214 clients of ten copies of 500,000 weights in float32, 20 MB each."""
    job: Any = SimpleNamespace(
        program=SimpleNamespace(pool=SimpleNamespace(device=torch.device(device))),
        broadcast=Tree(model=torch.empty(weights - 2)),
        per_client=[Tree(own=torch.empty(1))],
        states=[Tree(kept=torch.empty(1))],
    )
    assert _default_size_for(job) == size
    stacked = StackedTrees(Tree(kept=torch.empty(5, 1)), range(5))
    job.states = stacked
    assert _default_size_for(job) == size


def test_not_even_one_client() -> None:
    with pytest.raises(BadInput, match="not even one client fits"):
        simulate(Small(budget=0))


class Stream:
    """Notes who waits for whom."""

    def __init__(self, name: str, events: list[str]):
        self.name, self.events = name, events

    def wait_stream(self, other: Stream) -> None:
        self.events.append(f"{self.name} waits for {other.name}")


@pytest.mark.parametrize("broken", [False, True])
def test_each_architecture_has_its_own_stream_on_a_gpu(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    main, made = Stream("main", events), itertools.count()

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        events.append(f"on {stream.name}")
        yield
        events.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream(f"stream {next(made)}", events))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", on)
    gpu = SimpleNamespace(pool=SimpleNamespace(device=torch.device("cuda")))

    class Noted(Stack):
        def train(self, job: Job) -> list[Reply]:
            if broken and job.round == 2:
                raise ValueError("broken")
            events.append(f"job {job.round}")
            return [Reply(Tree(n=torch.tensor(job.round)), Tree())]

    stack = Noted()
    jobs: Any = [SimpleNamespace(program=gpu, round=number) for number in (1, 2)]
    if broken:
        with pytest.raises(ValueError, match="broken"):
            stack.train_all(jobs)
    else:
        for _ in range(2):  # the streams of the first round are used again
            events.clear()
            assert [int(found[0].send["n"]) for found in stack.train_all(jobs)] == [1, 2]
        each = [(f"stream {n} waits for main", f"on stream {n}", f"job {n + 1}", f"off stream {n}") for n in (0, 1)]
        assert events[:8] == [*each[0], *each[1]]
    assert events[-2:] == ["main waits for stream 0", "main waits for stream 1"]


def test_clients_of_equal_steps_are_one_list_with_the_largest_first() -> None:
    job: Any = SimpleNamespace(schedules=[[range(2)], [range(2)], [range(2)]], indices=[range(3), range(4), range(4)])
    assert by_steps(job) == [[1, 2, 0]]
    job.schedules[0] = [range(1)]
    assert by_steps(job) == [[1, 2, 0]]


def test_whether_replies_are_finite_is_found_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    class Noted(FiniteCheck):
        def __init__(self, trees: list[Tree]):
            super().__init__(trees)
            self.trees = len(trees)

        def result(self) -> bool:
            if self._result is None:
                looked.append(self.trees)
            return super().result()

    monkeypatch.setattr("fedhead.executors.stack.stack.FiniteCheck", Noted)
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
    made = make_simulation(federation(), [network("batch")], METHODS["fedavg"](), rounds=1, local=local)
    stack = Stack()
    replies = stack.run(made.jobs_of_round(1))
    assert looked == []
    assert replies.finite()
    assert replies.finite()
    assert looked == [2], "once, what is sent and what is kept"
    made.server = made.server.map(lambda t: t * float("nan"))
    assert not stack.run(made.jobs_of_round(1)).finite()
