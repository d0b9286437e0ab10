"""The local models of a round, and the features of the global one: what the analyses look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm, Method
from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Phase, Reply
from fedhead.algorithm.task import Task
from fedhead.calibration.statistics import Statistics, from_features
from fedhead.core.batch import PARTS
from fedhead.core.errors import BadInput
from fedhead.core.tree import Tree, Weights
from fedhead.engine.rounds import train_round
from fedhead.executors.forward import MemoryBudget, client_features, use_stacks
from fedhead.stages.recalibrate import features

if TYPE_CHECKING:
    from fedhead.engine.simulation import Simulation
    from fedhead.executors.job import Executor


class Observer(Algorithm):
    """Lets clients train as a method has it, on the very batches of the round, and shows their models."""

    name = "observer"

    def __init__(self, method: Method):
        self.method = method
        self.broadcast = method.broadcast  # type: ignore[misc]  # what the method broadcasts, which differs by instance

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """The method's own."""
        return self.method.per_client(server, client, task)

    def start(self, client: Client) -> Weights:
        """The method's own."""
        return self.method.start(client)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """The method's own."""
        return self.method.phases(task)

    def correct(self, g: Tree, client: Client) -> Tree:
        """The method's own."""
        return self.method.correct(g, client)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Show the model after local training."""
        return Reply(send=Tree(model=w.part(*PARTS)), keep=client.state)


def local_models(simulation: Simulation, executor: Executor, round: int) -> dict[int, Weights]:
    """Every client's model after local training in a round that begins where the simulation stands, which stays so."""
    found: dict[int, Weights] = {}
    observer = Observer(simulation.method)
    for job in simulation.jobs(observer, simulation.server, simulation.states, simulation.holders, round):
        replies = executor.run(replace(job, program=replace(job.program, uploads=())))  # the models as they are
        found.update({k: reply.send["model"] for k, reply in zip(job.clients, replies, strict=True)})
    return dict(sorted(found.items()))


def budget(simulation: Simulation, executor: Executor) -> MemoryBudget | None:
    """MemoryBudget for the clients' models side by side, where they go through them together."""
    return MemoryBudget() if use_stacks(simulation.device, executor) else None


def own_features(
    simulation: Simulation, models: Mapping[int, Weights], executor: Executor
) -> dict[int, tuple[Tensor, Tensor]]:
    """z of every client's training samples from the client's own model, not augmented, and their labels."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for group, task in enumerate(simulation.tasks):
        mine = [client for client in models if simulation.assign[client] == group]
        rows = [simulation.federation.rows[client] for client in mine]
        space = simulation.budgets[group] if use_stacks(simulation.device, executor) else None
        each = client_features(task.model, [models[client] for client in mine], simulation.pool, rows, space)
        for client, own, z in zip(mine, rows, each, strict=True):
            found[client] = z, simulation.pool.y[torch.from_numpy(own).to(simulation.device)]
    return {client: found[client] for client in models}


def replay(simulation: Simulation, executor: Executor, rounds: Sequence[int]) -> dict[int, dict[int, Weights]]:
    """The local models of chosen rounds of a run that starts here: {round: {client: weights}}.

    Rounds are run again from the simulation's present state, the first being round 1, to the same numbers as before.
    """
    found = {}
    for number in range(1, max(rounds, default=0) + 1):
        if number in rounds:
            found[number] = local_models(simulation, executor, number)
        if number < max(rounds):
            train_round(simulation.using(executor), number)
    return found


def global_weights(simulation: Simulation) -> Weights:
    """The global model, or `BadInput` if the method leaves none."""
    w = simulation.method.global_model(simulation.server, simulation.task)
    if w is None:
        raise BadInput(f"{simulation.method.name} leaves no global model, and this needs one")
    return w


def held_out_features(simulation: Simulation, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """z and labels of the test samples (of these rows), from the global model."""
    if simulation.test is None:
        raise BadInput("the run has no test samples, and this needs some")
    return features(simulation.task.model, global_weights(simulation), simulation.test, rows)


def train_statistics(simulation: Simulation, chunk: int = 4096) -> Statistics:
    """The class statistics of all clients' features, as CCVR would merge them."""
    pool = simulation.task.pool
    assert pool is not None, "a simulation holds all clients' data"
    w, total = global_weights(simulation), None
    for rows in torch.split(torch.arange(len(pool)), chunk):
        part = from_features(*features(simulation.task.model, w, pool, rows), simulation.task.classes)
        total = part if total is None else total + part
    return cast(Statistics, total)
