"""Virtual features: draws from the class statistics, and the transformation that makes features more Gaussian."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedhead.calibration.statistics import Statistics
from fedhead.core import random
from fedhead.core.errors import BadInput
from fedhead.data.allocation import apportion

Tukey = Literal["real", "both", "virtual", "none"]


def tukey(z: Tensor, power: float) -> Tensor:
    """Tukey's transformation after a ReLU, max(z, 0)^λ: it makes features more like a Gaussian (CCVR, Section 5.1)."""
    return z.clamp_min(0) ** power


def sizes(count: Tensor, samples: int, proportional: bool) -> list[int]:
    """M_c, the virtual features of each class: constant, or in proportion to N_c/|D|; none for an absent class.

    >>> sizes(torch.tensor([30.0, 0.0, 10.0]), 20, proportional=True)
    [30, 0, 10]
    """
    present = count > 0
    if not bool(present.any()):
        raise BadInput("the statistics hold no samples of any class: there is nothing to calibrate with")
    if not proportional:
        return [samples if there else 0 for there in present.tolist()]
    share = (count / count.sum()).double().cpu().numpy()
    return [int(m) for m in apportion(share, samples * int(present.sum()))]


def virtual_features(statistics: Statistics, number: list[int], key: int) -> tuple[Tensor, Tensor]:
    """Features drawn from N(μ_c, Σ_c), `number[c]` of class c, and their labels (CCVR, Algorithm 1).

    A draw is μ + Σ^½ ε with the symmetric root of Σ, which every machine computes alike (an eigenvector's sign is
    arbitrary, the root is not). Eigenvalues are clipped at 0: Σ is singular where a class has fewer samples than
    features have dimensions. ε comes from a generator a class, so that one class's number leaves the others alone.
    """
    mean, covariance = statistics.mean(), statistics.covariance()
    drawn, labels = [], []
    for c, m in enumerate(number):
        if not m:
            continue
        noise = torch.randn(m, statistics.features, generator=random.generator(random.key(key, c)), dtype=torch.float64)
        drawn.append(mean[c] + _color(noise.to(mean.device), covariance[c]))
        labels.append(torch.full((m,), c, device=mean.device))
    return torch.cat(drawn), torch.cat(labels)


def _color(noise: Tensor, covariance: Tensor) -> Tensor:
    if covariance.dim() == 1:
        return noise * covariance.clamp_min(0).sqrt()
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
    return noise @ root
