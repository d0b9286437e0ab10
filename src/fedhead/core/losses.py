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


def supervised_contrastive(
    first: Tensor, second: Tensor, y: Tensor, weight: Tensor, temperature: float = 0.07, base: float | None = None
) -> Tensor:
    """Pull two views of each class's samples together and apart from the other classes (Khosla et al., 2020, Eq. 2).

    `first` and `second` are the features [B, d] of two views, normalized by the caller where that is wanted. With
    i an anchor, P(i) the other views of its class and A(i) all other views, the loss is the mean over anchors of
    −(τ/τ_base) / |P(i)| · Σ_{p∈P(i)} log( exp(z_i·z_p/τ) / Σ_{a∈A(i)} exp(z_i·z_a/τ) ); base None means τ_base = τ.
    Every anchor has a positive, its own second view, so that one sample or one class alone is no special case.
    """
    z, label, present = torch.cat([first, second]), torch.cat([y, y]), torch.cat([weight, weight]).to(first.dtype)
    similarity = z @ z.T / temperature
    # the places of the others: not oneself, and no padding; filled with a number, as an infinite one has no gradient
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    others = present.unsqueeze(0).expand_as(similarity).masked_fill(itself, 0.0)
    log_probability = similarity.masked_fill(others == 0, -1e30).log_softmax(dim=-1)
    positives = others * (label.unsqueeze(0) == label.unsqueeze(1))
    pulled = (positives * log_probability.masked_fill(others == 0, 0.0)).sum(-1) / positives.sum(-1).clamp_min(1e-12)
    return mean(-pulled, present) * (1.0 if base is None else temperature / base)


def distillation(logits: Tensor, target: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """KL(target ‖ softmax(logits / T)), where the target is a distribution that was itself taken at temperature T.

    There is no factor T²: it rescales the step, and the papers that distil here set their learning rates without it.
    """
    divergence = torch.special.xlogy(target, target) - target * F.log_softmax(logits / temperature, dim=-1)
    return mean(divergence.sum(-1), weight.to(logits.dtype))


def balanced_softmax(
    logits: Tensor, y: Tensor, weight: Tensor, counts: Tensor, gamma: float = 1.0, absent: str = "mask"
) -> Tensor:
    """Cross entropy in which each class is weighed by its samples, so that no class wins by being frequent.

    Balanced softmax (Ren et al., 2020) adds γ log n_c to the logits (FedETF's Eq. 6). A class without samples drops
    out of the softmax with `absent="mask"`, as n_c^γ = 0 says; with `absent="one"` it counts as one sample.
    """
    if gamma == 0:  # 0⁰ = 1: no class is weighed at all
        return cross_entropy(logits, y, weight)
    prior = gamma * counts.clamp_min(1).log()
    if absent == "mask":
        prior = prior.masked_fill(counts == 0, -torch.inf)
    return cross_entropy(logits + prior.to(logits.dtype), y, weight)
