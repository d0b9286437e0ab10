"""Removal of small classes from entries with one row per class, such as class statistics and prototypes.

Sums over very few samples reveal the samples; the sum over one sample is that sample. A client can therefore leave out
the rows of its small classes (`Task.min_class_count`). To the server it then has no samples of these classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.client import Client
from fedhead.core.tree.tree import Tree


def without_small_classes(algorithm: Algorithm, send: Tree, client: Client) -> Tree:
    """Return sent entries with the rows of small classes set to zero; pure, for one client."""
    least = client.task.min_class_count
    # rows left out by exact counts would void differential privacy
    if least <= 1 or algorithm.protected or not algorithm.class_rows:
        return send
    large = client.counts >= least

    def only_large(rows: Tensor) -> Tensor:
        return torch.where(large.reshape(-1, *[1] * (rows.dim() - 1)), rows, torch.zeros_like(rows))

    def masked(entry: Any) -> Any:
        return entry.map(only_large) if isinstance(entry, Tree) else only_large(entry)

    return send.replace({name: masked(send[name]) for name in algorithm.class_rows if name in send})


def small_classes(algorithm: Algorithm, counts: Tensor, least: int) -> list[int]:
    """Return the numbers of the classes that `without_small_classes` removes from a client's reply."""
    if least <= 1 or algorithm.protected or not algorithm.class_rows:
        return []
    return [int(c) for c in torch.nonzero((counts > 0) & (counts < least)).flatten()]
