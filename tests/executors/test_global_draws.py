"""What users' code draws from the generators that everyone shares: decided by the seed in a loop, named elsewhere."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import federation, network
from torch import Tensor

import fedhead as fh
from fedhead.algorithm.task import LocalTraining
from fedhead.core.training import global_generators
from fedhead.core.training.optimizers import SGD
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.states.host_states import HostStates
from fedhead.executors.client.base import Executor
from fedhead.executors.client.client_round import local_round
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import Vectorizer
from fedhead.executors.client.stack_errors import CannotStack
from fedhead.executors.forward import ForwardExecutor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.recipes.recipe import load
from fedhead.runs.run import Compute, execute


@dataclass(frozen=True)
class Draws(fh.FedAvg):
    """Scales its loss by what it draws."""

    def loss(self, w: Any, batch: Any, client: Any) -> Tensor:
        return super().loss(w, batch, client) * (torch.rand(()) + np.random.rand() + random.random())  # noqa: NPY002


DRAWS = """
from dataclasses import dataclass

import torch

import fedhead as fh


@dataclass(frozen=True)
class Draws(fh.FedAvg):
    def loss(self, w, batch, client):
        return super().loss(w, batch, client) * torch.rand(())
"""


class OwnExecutor(Executor):
    """A user's executor, which does nothing about draws."""

    name = "own"

    def run(self, job: Job) -> list[Any]:
        return [local_round(job.program, job.inputs(k), job.batches(k), Vectorizer()) for k in range(len(job.clients))]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trained(method: fh.Method, executor: Executor, rounds: int = 2, seed: int = 0) -> dict[str, Tensor]:
    local = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(0.05))
    simulation = Simulation(
        federation(), [network("group")], method, rounds=rounds, local=local, seed=seed, executor=executor
    )
    for number in range(1, rounds + 1):
        train_round(simulation, number)
    return simulation.server.leaves()


def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DRAWS)
    words = ["rounds=3", "clients=3", "subset=90", f"method={tmp_path / 'mine.py'}:Draws"]
    recipe, settings = load("digits", words), Compute(executor="loop")

    def stop(row: Any) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    whole = execute(recipe, tmp_path / "whole", settings)
    with pytest.raises(KeyboardInterrupt):
        execute(recipe, tmp_path / "stopped", settings, on_row=stop)
    assert execute(recipe, tmp_path / "stopped", settings, resume=True)["test_loss"] == whole["test_loss"]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("count", [1, 3])
def test_a_loop_draws_the_same_in_every_run_and_on_any_number_of_threads(threads: None, count: int) -> None:
    torch.set_num_threads(1)
    first = trained(Draws(), Loop())
    torch.set_num_threads(count)
    assert same(first, trained(Draws(), Loop()))
    assert torch.get_num_threads() == count
    assert not same(first, trained(Draws(), Loop(), seed=1))
    assert not same(first, trained(fh.FedAvg(), Loop()))


def test_a_loop_that_saw_a_draw_puts_the_generators_back() -> None:
    loop = Loop()
    trained(Draws(), loop, rounds=1)
    before = global_generators.states()
    trained(Draws(), loop)
    assert global_generators.states() == before


@pytest.mark.parametrize("draws", [False, True])
def test_a_round_that_is_run_again_counts_once(threads: None, draws: bool, caplog: pytest.LogCaptureFixture) -> None:
    torch.set_num_threads(1)  # so that no two clients count at once

    class Counting(fh.FedAvg):
        def loss(self, w: Any, batch: Any, client: Any) -> Tensor:
            return super().loss(w, batch, client) * (torch.rand(()) if draws else 1)

        def finish(self, w: Any, client: Any) -> fh.Reply:
            vars(self)["count"] += 1
            vars(self)["all"].append(1)
            vars(self).setdefault("added", []).append(1)
            vars(self)["set"].add(len(vars(self)["set"]))
            vars(self)["tensor"].add_(1)
            vars(self)["array"][0] += 1
            vars(self)["by name"]["tensors"][0].add_(1)
            return super().finish(w, client)

    method, held = Counting(), set[int]()
    vars(method).update(count=0, all=[], set=held, tensor=torch.zeros(()), array=np.zeros(1))
    vars(method)["by name"] = {"tensors": (torch.zeros(()),)}
    with caplog.at_level(logging.INFO, "fedhead"):
        trained(method, Loop(), rounds=2)
    clients = 2 * sum(len(rows) > 0 for rows in federation().rows)
    assert vars(method)["count"] == len(vars(method)["all"]) == len(vars(method)["added"]) == clients
    assert len(held) == vars(method)["array"][0] == clients
    assert vars(method)["tensor"] == vars(method)["by name"]["tensors"][0] == clients
    assert caplog.text.count("clients train one after another") == draws


def test_what_a_real_site_draws_is_not_decided_by_the_seed() -> None:
    assert not same(trained(Draws(), Loop(seeded=False)), trained(Draws(), Loop(seeded=False)))


def test_another_executor_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fedhead"):
        trained(fh.FedAvg(), OwnExecutor())
        trained(Draws(), Loop())
        assert "global generator" not in caplog.text
        trained(Draws(), OwnExecutor())
    assert "executor own: Draws or its model draws from torch's global generator, which the run's seed" in caplog.text


@dataclass(frozen=True)
class DrawsElsewhere(fh.FedAvg):
    """Draws from the generators that vmap does not know."""

    def loss(self, w: Any, batch: Any, client: Any) -> Tensor:
        return super().loss(w, batch, client) * (np.random.rand() + random.random())  # noqa: NPY002 (a user's may)


def test_a_stack_names_draws_that_it_does_not_refuse(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fedhead"):
        trained(fh.FedAvg(), Stack())
        assert "global generator" not in caplog.text
        trained(DrawsElsewhere(), Stack())
    for name in ("numpy", "random"):
        assert f"executor stack: DrawsElsewhere or its model draws from {name}'s global generator" in caplog.text
    with pytest.raises(CannotStack, match="draws random numbers itself"):
        trained(Draws(), Stack())


def test_a_stack_of_a_stage_names_draws(caplog: pytest.LogCaptureFixture) -> None:
    class Counts(fh.FedAvg):
        """Sends without training."""

        def phases(self, task: Any) -> list[Any]:
            return []

        def finish(self, w: Any, client: Any) -> fh.Reply:
            return fh.Reply(send=fh.Tree(model=w * np.random.rand()), keep=fh.Tree())  # noqa: NPY002 (a user's may)

    with caplog.at_level(logging.WARNING, "fedhead"):
        trained(Counts(), ForwardExecutor(), rounds=1)
    assert "executor stack: Counts or its model draws from numpy's global generator" in caplog.text


def test_an_aggregation_that_draws_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Noise(fh.FedAvg):
        def aggregate(self, server: Any, replies: Any, task: Any) -> Any:
            torch.randn(3)
            return super().aggregate(server, replies, task)

    with caplog.at_level(logging.WARNING, "fedhead"):
        trained(Noise(), Loop())
    assert "Noise.aggregate draws from torch's global generator" in caplog.text


@dataclass(frozen=True)
class Seeding(fh.Sampler):
    """A sampler that seeds a global generator and draws from it: it selects the same clients each time."""

    def select(self, round: int, count: int, sizes: Any, seed: int) -> list[int]:
        random.seed(seed + round)
        return random.sample(sorted(sizes), count)


def test_a_sampler_that_is_asked_while_clients_train_is_not_taken_for_them(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"rounds": 3, "local": LocalTraining(batch_size=4), "participation": 0.5}
    made = Simulation(
        federation(), [network("group")], fh.Scaffold(), executor=OwnExecutor(), sampler=Seeding(), **settings
    )
    made.states = HostStates(made.initial_state, torch.device("cpu"))  # of which the next round's are fetched ahead
    before = random.getstate()
    try:
        with caplog.at_level(logging.WARNING, "fedhead"):
            for number in (1, 2, 3):
                train_round(made, number)
    finally:
        random.setstate(before)
    assert "global generator" not in caplog.text
