"""Evaluation: accuracies in per cent, over the global test set and over every client's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedhead.data.pool import Pool
from fedhead.executors.job import Rows


@torch.no_grad()
def hits(scores: Callable[[Tensor], Tensor], pool: Pool, rows: Rows | None = None, batch: int = 1024) -> Tensor:
    """Whether each sample (of these rows) gets its own class as the best score."""
    places = torch.arange(len(pool)) if rows is None else torch.from_numpy(rows)
    places = places.to(pool.device)
    found = [scores(pool.view(part, None)).argmax(-1) == pool.y[part] for part in torch.split(places, batch)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.bool)


def accuracy(right: Tensor) -> float | None:
    """The share of hits in per cent, or None where there was nothing to test."""
    return 100.0 * float(right.double().mean()) if len(right) else None


def per_class(right: Tensor, y: Tensor, classes: int) -> list[float | None]:
    """The accuracy on each class, None for a class without test samples."""
    found = np.bincount(y.cpu().numpy(), weights=right.cpu().numpy(), minlength=classes)
    total = np.bincount(y.cpu().numpy(), minlength=classes)
    return [100.0 * float(f) / int(t) if t else None for f, t in zip(found, total, strict=True)]


def mean(values: list[float | None]) -> float | None:
    """The unweighted mean of those that are there."""
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None
