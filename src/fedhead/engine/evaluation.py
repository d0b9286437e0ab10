"""Evaluation: accuracies in per cent, over the global test set and over every client's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhead.data.pool import Pool


@torch.no_grad()
def predictions(scores: Callable[[Any], Tensor], pool: Pool, batch: int = 1024) -> Tensor:
    """The class with the best score, for each sample."""
    places = torch.arange(len(pool), device=pool.device)
    found = [scores(pool.view(part, None)).argmax(-1) for part in torch.split(places, batch)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64, device=pool.device)


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
