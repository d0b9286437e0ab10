"""The test of clients' own models, each on samples of its client."""

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
    from fedhead.data.partitions.allocation import Rows


def client_model_tests(
    clients: Clients,
    algorithm: Algorithm,
    downlink: Downlink,
    states: ClientStates,
    round: int,
    executor: Executor | None = None,
    metrics: Mapping[str, Metric] = NO_METRICS,
    samples: tuple[list[Rows], Pool] | None = None,
) -> dict[int, ClientTest]:
    """Test each addressed client's model on its own samples.

    Args:
        clients: The clients that are here.
        algorithm: The method or stage.
        downlink: What the clients receive.
        states: What they have kept.
        round: The number of the round.
        executor: The run's executor.
        metrics: Further metrics, by name.
        samples: The rows of all clients and their pool; None: the clients' test samples.
    """
    local, pool = samples or clients.test_rows
    found: dict[int, ClientTest] = {}
    objective = clients.task.objective
    keep_scores = not objective.has_classes or any(one.needs_scores for one in metrics.values())
    reduce = forward.all_scores if keep_scores else partial(summarize, objective=objective)
    for job in clients.work(algorithm, downlink, states, round, trains=False):
        budget = clients.budgets[clients.assign[job.clients[0]]] if use_stacks(clients.device, executor) else None
        rows = [local[k] for k in job.clients]
        each = forward.personal_scores(job, pool, rows, budget, reduce)
        for k, mine, own in zip(job.clients, rows, each, strict=True):
            y = pool.y[torch.from_numpy(mine).to(pool.device)]
            tested = client_predictions(own, y, clients.task.classes, keep_scores, objective)
            found[k] = evaluation.client_test(tested, metrics)
    return found
