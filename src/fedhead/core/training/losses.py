"""Loss functions: weighted means over the samples of a batch (weight 0 for padding)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean of `values` [B]; 0 if all weights are 0."""
    return (values * weight).sum() / weight.sum().clamp_min(1e-12)


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Compute the softmax cross entropy.

    Args:
        logits: [B, C].
        y: Labels, [B].
        weight: Weight of each sample, [B]; 0 for padding.
    """
    return mean(cross_entropies(logits, y), weight.to(logits.dtype))


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """Compute the softmax cross entropy of each sample, bit-identical to `F.cross_entropy(…, reduction="none")`.

    Under vmap torch's function takes a third longer on a CPU, and its first call imports torch's symbolic shapes, which
    takes about a second.

    Args:
        logits: [B, C].
        y: Labels, [B].
    """
    return -F.log_softmax(logits, dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Compute the cosine similarity along the last axis."""
    return (F.normalize(a, dim=-1) * F.normalize(b, dim=-1)).sum(-1)


def model_contrastive(z: Tensor, towards: Tensor, away: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Pull features towards those of one model and away from those of another (MOON, Eq. 3).

    Args:
        z: Features of the model in training, [B, d].
        towards: Features of the model to approach (the global one), [B, d].
        away: Features of the model to move away from (the client's previous one), [B, d].
        weight: Weight of each sample, [B].
        temperature: τ.
    """
    pair = torch.stack([cosine(z, towards), cosine(z, away)], dim=-1) / temperature
    return mean(-F.log_softmax(pair, dim=-1)[:, 0], weight.to(z.dtype))


def supervised_contrastive(
    first: Tensor, second: Tensor, y: Tensor, weight: Tensor, temperature: float = 0.07, base: float | None = None
) -> Tensor:
    """Pull samples of the same class together and push other classes away (Khosla et al., 2020, Eq. 2).

    With i an anchor, P(i) the other views of its class and A(i) all other views, the loss is the mean over anchors of
    −(τ/τ_base) / |P(i)| · Σ_{p∈P(i)} log( exp(z_i·z_p/τ) / Σ_{a∈A(i)} exp(z_i·z_a/τ) ). Every anchor has at least one
    positive, its own second view, so a single sample or a single class needs no special case.

    Args:
        first: Features of the first view of each sample, [B, d]; normalize them first if the method does.
        second: Features of the second view, [B, d].
        y: Labels, [B].
        weight: Weight of each sample, [B].
        temperature: τ.
        base: τ_base; None means τ_base = τ.
    """
    z, label, present = torch.cat([first, second]), torch.cat([y, y]), torch.cat([weight, weight]).to(first.dtype)
    similarity = z @ z.T / temperature
    # mask the anchor itself and padding with a finite number, since an infinite one has no gradient
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    others = present.unsqueeze(0).expand_as(similarity).masked_fill(itself, 0.0)
    log_probability = similarity.masked_fill(others == 0, -1e30).log_softmax(dim=-1)
    positives = others * (label.unsqueeze(0) == label.unsqueeze(1))
    pulled = (positives * log_probability.masked_fill(others == 0, 0.0)).sum(-1) / positives.sum(-1).clamp_min(1e-12)
    return mean(-pulled, present) * (1.0 if base is None else temperature / base)


def distillation(logits: Tensor, target: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Compute KL(target ‖ softmax(logits / T)).

    There is no factor T²: it only rescales the step, and the implemented papers set their learning rates without it.

    Args:
        logits: [B, C].
        target: Distributions that were themselves computed at temperature T, [B, C].
        weight: Weight of each sample, [B].
        temperature: T.
    """
    divergence = torch.special.xlogy(target, target) - target * F.log_softmax(logits / temperature, dim=-1)
    return mean(divergence.sum(-1), weight.to(logits.dtype))


def balanced_softmax(
    logits: Tensor, y: Tensor, weight: Tensor, counts: Tensor, gamma: float | Tensor = 1.0, absent: str = "one"
) -> Tensor:
    """Compute the cross entropy with a class prior added, so that no class wins by being frequent.

    Balanced softmax (Ren et al., 2020) adds γ log n_c to the logits (FedETF, Eq. 6).

    Args:
        logits: [B, C].
        y: Labels, [B].
        weight: Weight of each sample, [B].
        counts: n_c, the samples per class, [C].
        gamma: γ; 0 gives the plain cross entropy.
        absent: How to treat a class without samples: "one" counts it as one sample; "mask" removes it from the softmax,
            as n_c^γ = 0 implies.
    """
    prior = gamma * counts.clamp_min(1).log()
    if absent == "mask":  # 0⁰ = 1: with γ = 0 no class is weighted
        prior = prior.masked_fill((counts == 0) & (gamma > 0), -torch.inf)
    return cross_entropy(logits + prior.to(logits.dtype), y, weight)
