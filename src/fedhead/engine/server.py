"""The server's half of an exchange, the same in a simulation and across machines: post, aggregate, test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedhead.data.pool import Pool
from fedhead.engine import evaluate
from fedhead.exchange import Exchange
from fedhead.tree import Tree, Weights
from fedhead.types import Output, Replies, Task


class Post(NamedTuple):
    """What the server sends in an exchange."""

    down: Tree  # to every client alike
    own: dict[int, Tree]  # to one client alone, by its number

    def nbytes(self) -> int:
        """The bytes that all clients receive together."""
        return len(self.own) * self.down.nbytes + sum(own.nbytes for own in self.own.values())


def post(exchange: Exchange, server: Tree, clients: Sequence[int], task: Callable[[int], Task]) -> Post:
    """What these clients receive; `task` gives the task of a client's architecture."""
    down = Tree({name: server[name] for name in exchange.downlink if name in server})
    return Post(down, {k: exchange.address(server, k, task(k)) for k in clients})


def aggregate(
    exchange: Exchange, server: Tree, sent: Mapping[int, Tree], samples: Mapping[int, float], task: Task
) -> Tree:
    """The server's new state from replies that have passed the gate, taken in the order of the clients' numbers."""
    order = sorted(sent)
    return exchange.aggregate(server, Replies(order, [samples[k] for k in order], [sent[k] for k in order]), task)


def figures(exchange: Exchange, server: Tree, task: Task, pool: Pool | None, bf16: bool = False) -> dict[str, object]:
    """The global model's accuracy, overall and by class, where there is such a model and a test set."""
    model = exchange.global_model(server, task)
    if model is None or pool is None:
        return {"accuracy": None, "per_class": None}
    right = evaluate.hits(lambda x: _scores(exchange, model, x, task, bf16), pool)
    return {"accuracy": evaluate.accuracy(right), "per_class": evaluate.per_class(right, pool.y, task.classes)}


def _scores(exchange: Exchange, w: Weights, x: Tensor, task: Task, bf16: bool) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
        out: Output = torch.func.functional_call(task.model.eval(), dict(w), (x,))
        return exchange.scores(out, w, task)
