"""Server side of an exchange, for all transports: downlink, aggregation, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.task import Task
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_check import check_broadcast, check_weights, checked_tree
from fedhead.data.pool import Pool
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.global_model_tests import global_predictions
from fedhead.engine.clients.private_rounds import PrivateMean
from fedhead.engine.policies.robust_mean import RobustMean
from fedhead.executors.client.hook_check import check_once
from fedhead.metrics.records import Row
from fedhead.metrics.registry import NO_METRICS, Metric

_FIX = (
    "which clients, snapshots and the best round so far may hold as well: compute a new tensor, and return "
    "server.replace(…) from aggregate"
)


class Downlink(NamedTuple):
    """Message from the server to the clients."""

    broadcast: Tree  # to every client
    per_client: dict[int, Tree]  # extra content for one client, by client number

    def nbytes(self) -> int:
        """Return the bytes that all clients receive together."""
        return len(self.per_client) * self.broadcast.nbytes + sum(tree.nbytes for tree in self.per_client.values())


def make_downlink(algorithm: Algorithm, server: Tree, clients: Sequence[int], task: Callable[[int], Task]) -> Downlink:
    """Return the downlink to these clients; `task` maps a client to the task of its architecture."""
    broadcast = Tree({name: server[name] for name in algorithm.broadcast if name in server})
    hook = f"{type(algorithm).__name__}.per_client"
    with _checked(hook, algorithm, server):
        per_client = {k: checked_tree(algorithm.per_client(server, k, task(k)), hook) for k in clients}
    return Downlink(broadcast, per_client)


def initial_server(method: Method, w: Weights, task: Task) -> Tree:
    """Return the initial server state.

    Raises:
        BadInput: If the method returns anything but a tree of tensors.
    """
    return checked_tree(method.init_server(w, task), f"{type(method).__name__}.init_server")


def aggregate(
    algorithm: Algorithm, server: Tree, replies: Replies, task: Task, mean: RobustMean | PrivateMean | None = None
) -> Tree:
    """Return the new server state from validated replies, in ascending order of the clients.

    Args:
        algorithm: Method or stage.
        server: Server state before the exchange.
        replies: Replies of the clients.
        task: Sizes and settings.
        mean: Rule in place of the weighted mean; None: none.

    Raises:
        BadInput: If the rule modifies the old state in place, or returns anything but a tree of tensors with all
            entries to broadcast.
    """
    hook = f"{type(algorithm).__name__}.aggregate"
    rules = () if mean is None else (mean.component,)
    with _checked(hook, algorithm, server, *rules, replies=replies):
        if mean is None:
            new = checked_tree(algorithm.aggregate(server, replies, task), hook)
        else:
            state = algorithm.aggregate(server, replace(replies, robust_mean=mean), task)
            new = mean.remember(algorithm, checked_tree(state, hook))
    check_weights(new, server, hook)
    check_broadcast(new, server, algorithm.broadcast, hook)
    return new


def _checked(
    hook: str, algorithm: Algorithm, server: Tree, *others: object, replies: Replies | None = None
) -> AbstractContextManager[None]:
    device = next((tensor.device for tensor in server.tensors()), None)

    def inputs() -> dict[str, Tree]:
        return {"server": server} | (
            {"replies.sent[0]": replies.sent[0]} if replies is not None and replies.sent else {}
        )

    return check_once(hook, (algorithm, *others), inputs, _FIX, device)


def global_model(algorithm: Algorithm, server: Tree, task: Task) -> Weights | None:
    """Return the global model of a method or stage; None if it has no global model.

    Raises:
        BadInput: If the hook modifies the server state in place.
    """
    with _checked(f"{type(algorithm).__name__}.global_model", algorithm, server):
        return algorithm.global_model(server, task)


def evaluate_global_model(
    algorithm: Algorithm,
    server: Tree,
    task: Task,
    pool: Pool | None,
    bf16: bool = False,
    metrics: Mapping[str, Metric] = NO_METRICS,
    final: bool = False,
) -> Row:
    """Evaluate the global model and return record entries; their values are None without a model or test samples.

    Args:
        algorithm: Method or stage.
        server: Server state.
        task: Task.
        pool: Test samples.
        bf16: Whether the model computes in bfloat16.
        metrics: Additional metrics by name.
        final: Whether to record the confusion matrix.
    """
    model = global_model(algorithm, server, task)
    if model is None or pool is None:
        return {"accuracy": None, "test_loss": None, "per_class": None}
    keep_scores = any(metric.needs_scores for metric in metrics.values())
    predictions = global_predictions(algorithm, model, task, pool, bf16, keep_scores)
    return evaluation.global_row(predictions, metrics, final)
