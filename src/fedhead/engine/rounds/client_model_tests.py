"""Evaluation of the clients' personal models on their own samples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch

from fedhead.algorithm.base import Algorithm
from fedhead.data.pool import Pool
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.evaluation import ClientTest
from fedhead.engine.clients.server import Downlink
from fedhead.engine.states.client_states import ClientStates
from fedhead.executors import forward
from fedhead.executors.client.base import Executor
from fedhead.executors.stack.map_clients import use_stacks
from fedhead.metrics.predictions import client_predictions, summarize
from fedhead.metrics.registry import NO_METRICS, Metric

if TYPE_CHECKING:
    from fedhead.data.partitions.allocation import Indices


def client_model_tests(
    clients: Clients,
    algorithm: Algorithm,
    downlink: Downlink,
    states: ClientStates,
    round: int,
    executor: Executor | None = None,
    metrics: Mapping[str, Metric] = NO_METRICS,
    samples: tuple[list[Indices], Pool] | None = None,
) -> dict[int, ClientTest]:
    """Evaluate the personal model of each client on the client's samples.

    Args:
        clients: Clients of this machine.
        algorithm: Method or stage.
        downlink: Message to the clients to evaluate.
        states: Client states.
        round: Number of the round.
        executor: Executor of the run.
        metrics: Additional metrics by name.
        samples: Sample indices of all clients and their pool; None: the clients' test samples.
    """
    local, pool = samples or clients.test_indices
    tests: dict[int, ClientTest] = {}
    objective = clients.task.objective
    keep_scores = not objective.has_classes or any(metric.needs_scores for metric in metrics.values())
    reduce = forward.all_scores if keep_scores else partial(summarize, objective=objective)
    for job in clients.work(algorithm, downlink, states, round, trains=False):
        budget = clients.budgets[clients.assign[job.clients[0]]] if use_stacks(clients.device, executor) else None
        indices = [local[k] for k in job.clients]
        outputs = forward.personal_scores(job, pool, indices, budget, reduce)
        for k, tested, scores in zip(job.clients, indices, outputs, strict=True):
            y = pool.y[torch.from_numpy(tested).to(pool.device)]
            predictions = client_predictions(scores, y, clients.task.classes, keep_scores, objective)
            tests[k] = evaluation.client_test(predictions, metrics)
    return tests
