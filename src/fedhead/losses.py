"""Losses, each a mean over the samples of a batch that takes the samples' weights (0 for padding)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def mean(values: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean; 0 where all weights are."""
    return (values * weight).sum() / weight.sum().clamp_min(1e-12)


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Softmax cross entropy."""
    return mean(F.cross_entropy(logits, y, reduction="none"), weight.to(logits.dtype))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine similarity along the last axis."""
    return (F.normalize(a, dim=-1) * F.normalize(b, dim=-1)).sum(-1)


def model_contrastive(z: Tensor, towards: Tensor, away: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Pull features towards one model's and away from another's (MOON, Eq. 3)."""
    pair = torch.stack([cosine(z, towards), cosine(z, away)], dim=-1) / temperature
    return mean(-F.log_softmax(pair, dim=-1)[:, 0], weight.to(z.dtype))
