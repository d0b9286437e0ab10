"""Local models of a round, and features of the global model, for analyses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Phase, Reply
from fedhead.algorithm.task import Task
from fedhead.calibration.statistics import Statistics, from_features, merge
from fedhead.core.system.errors import BadInput, require
from fedhead.core.training.batch import PARTS
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.clients.server import evaluate_global_model, global_model
from fedhead.engine.rounds.rounds import train_round
from fedhead.stages.recalibrate import features

if TYPE_CHECKING:
    from fedhead.data.pool import Pool
    from fedhead.engine.rounds.simulation import Simulation
    from fedhead.executors.client.base import Executor


class Observer(Algorithm):
    """Algorithm that trains clients like a method, on the same batches, and sends their models."""

    name = "observer"

    def __init__(self, method: Method):
        self.method = method
        self.broadcast = method.broadcast  # type: ignore[misc]  # differs by instance

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """Return the method's message to a client."""
        return self.method.per_client(server, client, task)

    def start(self, client: Client) -> Weights:
        """Return the method's initial weights of a client."""
        return self.method.start(client)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Return the method's phases."""
        return self.method.phases(task)

    def correct(self, g: Tree, client: Client) -> Tree:
        """Apply the method's gradient correction."""
        return self.method.correct(g, client)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the model after local training."""
        return Reply(send=Tree(model=w.part(*PARTS)), keep=client.state)


def local_models(simulation: Simulation, executor: Executor, round: int) -> dict[int, Weights]:
    """Return every client's model after local training in the next round, without changing the simulation.

    Args:
        simulation: Simulation in its current state.
        executor: Executor.
        round: Number of the round.
    """
    observer = Observer(simulation.experiment.method)
    jobs = simulation.jobs(observer, simulation.server, simulation.states, simulation.clients.holders, round)
    replies = executor.run([replace(job, program=replace(job.program, uploads=())) for job in jobs])
    return {k: reply.send["model"] for k, reply in replies.items()}


def own_features(simulation: Simulation, models: Mapping[int, Weights]) -> dict[int, tuple[Tensor, Tensor]]:
    """Compute the features z of each client's training samples (not augmented) with its own model.

    Returns:
        Features and labels per client.
    """
    clients = simulation.clients
    indices = {k: torch.from_numpy(clients.federation.indices[k]) for k in models}
    return {k: features(clients.task_of(k).model, w, clients.pool, indices[k]) for k, w in models.items()}


def replay(simulation: Simulation, executor: Executor, rounds: Sequence[int]) -> dict[int, dict[int, Weights]]:
    """Repeat rounds from the initial state and return the local models of some of them.

    Rounds are numbered from 1. The models are identical to those of the original run.

    Args:
        simulation: Simulation in its initial state.
        executor: Executor.
        rounds: Rounds whose local models are returned.

    Returns:
        Weights by round and client.
    """
    models = {}
    for number in range(1, max(rounds, default=0) + 1):
        if number in rounds:
            models[number] = local_models(simulation, executor, number)
        if number < max(rounds):
            train_round(simulation.using(executor), number)
    return models


def global_weights(simulation: Simulation) -> Weights:
    """Return the weights of the global model.

    Raises:
        BadInput: If the method has no global model.
    """
    w = global_model(simulation.experiment.method, simulation.server, simulation.task)
    if w is None:
        raise BadInput(f"{simulation.experiment.method.name} has no global model, which this analysis needs")
    return w


def held_out_pool(simulation: Simulation) -> Pool:
    """Return the test samples.

    Raises:
        BadInput: If there are none.
    """
    if simulation.test is None:
        raise BadInput("the run has no test samples, which this analysis needs")
    return simulation.test


def global_accuracy(simulation: Simulation) -> float:
    """Return the accuracy of the global model on the test samples in per cent.

    Raises:
        BadInput: If there are no test samples, or no global model.
    """
    global_weights(simulation)
    test = held_out_pool(simulation)
    row = evaluate_global_model(
        simulation.experiment.method, simulation.server, simulation.task, test, simulation.clients.bf16
    )
    return cast(float, row["accuracy"])


def check_rounds(rounds: Sequence[int], last: int, trained: int) -> None:
    """Check that rounds are between 1 and `last`; the error message names the run's `trained` rounds."""
    outside = [r for r in rounds if not 1 <= r <= last]
    if outside:
        raise BadInput(f"round {outside[0]} is not among the run's 1 … {trained}: give others with --rounds")


def check_same_size(sizes: Collection[int], where: object) -> None:
    """Check that the features of all clients have the same dimension."""
    require(
        len(set(sizes)) <= 1,
        f"{where}: clients' features differ in dimension ({sorted(set(sizes))}), so they can't be compared",
    )


def held_out_features(simulation: Simulation, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute z of the test samples (or of some rows) with the global model.

    Returns:
        Features and labels.

    Raises:
        BadInput: If there are no test samples, or no global model.
    """
    return features(simulation.task.model, global_weights(simulation), held_out_pool(simulation), rows)


def train_statistics(simulation: Simulation, chunk: int = 4096) -> Statistics:
    """Compute the merged class statistics of all clients' features, as in CCVR."""
    pool = simulation.task.pool
    assert pool is not None, "a simulation holds all clients' data"
    w, task = global_weights(simulation), simulation.task
    parts = torch.split(torch.arange(len(pool)), chunk)
    return merge(from_features(*features(task.model, w, pool, rows), task.classes) for rows in parts)
