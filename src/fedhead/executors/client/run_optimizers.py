"""The optimizer's step of a stack whose runs differ in its hyperparameters: each client steps by its run's."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedhead.core.training.optimizers import SGD, Optimizer, lay_out_alike
from fedhead.core.tree.tree import Tree


def step_by_run_in_place(optimizer: Optimizer, params: Tree, grads: Tree, state: Tree, lr: Tensor) -> tuple[Tree, Tree]:
    """Take one step of a stack of clients by their runs' own optimizers, which overwrites `params` and `state`.

    Args:
        optimizer: The optimizer, some of whose hyperparameters are tensors with one value per client.
        params: Parameters, with a client axis.
        grads: Their gradients.
        state: The optimizer's state.
        lr: Learning rate of each client, or of all.

    Returns:
        The parameters and the state, which lie in memory as the gradients do: the same tensors but in the first step.
    """
    params, grads, state = lay_out_alike(params, grads, state)
    clients = len(next(iter(params.values())))
    own = {name: value for name, value in vars(optimizer).items() if isinstance(value, Tensor)} | {"lr": lr}
    runs: dict[tuple[float, ...], list[int]] = {}  # clients by their hyperparameters
    for k, values in enumerate(zip(*(value.expand(clients).tolist() for value in own.values()), strict=True)):
        runs.setdefault(values, []).append(k)
    groups = list(runs.items())
    if not isinstance(optimizer, SGD):  # Adam counts the steps of each client
        groups = [(values, [k]) for values, mine in groups for k in mine]
    each = [tree.map(_by_client) for tree in (params, grads, state)]
    for values, mine in groups:
        one = copy.copy(optimizer)
        for name, value in zip(own, values, strict=True):
            object.__setattr__(one, name, value)
        w, g, kept = (_of_clients(tree, mine) for tree in each)
        one.step_in_place(w, g, kept, one.lr)
    return params, state


def _by_client(t: Tensor) -> tuple[Tensor, ...]:
    """Return each client's numbers in the order in which they lie in memory, as the fused kernels want them."""
    flat = t if t.dim() == 1 else t.as_strided((len(t), t[0].numel()), (t.stride(0), 1))
    return flat.unbind()


def _of_clients(tree: Tree, clients: Sequence[int]) -> Tree:
    """Return the tensors of some clients, of a tree that holds a list of them in place of each tensor."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Tree):
            found[name] = _of_clients(value, clients)
        elif len(clients) == 1:
            found[name] = value[clients[0]]
        else:
            found |= {f"{name}.{k}": value[k] for k in clients}
    return Tree(found)
