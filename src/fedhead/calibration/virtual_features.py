"""Virtual features drawn from class statistics, and Tukey's transformation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fedhead.calibration.statistics import Statistics
from fedhead.calibration.symmetric import classes_at_once
from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.data.partitions.allocation import apportion

Tukey = Literal["real", "both", "virtual", "none"]


def tukey(z: Tensor, power: float) -> Tensor:
    """Apply a ReLU and Tukey's transformation, max(z, 0)^λ, to make features more Gaussian (CCVR, Section 5.1)."""
    return z.clamp_min(0) ** power


def virtual_counts(count: Tensor, samples: int, proportional: bool) -> list[int]:
    """Return M_c, the number of virtual features per class; 0 for a class without samples.

    Args:
        count: Samples per class, [C].
        samples: Virtual features per class, on average if `proportional`.
        proportional: Whether M_c is proportional to N_c/|D| instead of constant.

    Raises:
        BadInput: If no class has samples.

    >>> virtual_counts(torch.tensor([30.0, 0.0, 10.0]), 20, proportional=True)
    [30, 0, 10]
    """
    present = count > 0
    if not bool(present.any()):
        raise BadInput("the statistics hold no samples of any class: there is nothing to calibrate with")
    if not proportional:
        return [samples if has_samples else 0 for has_samples in present.tolist()]
    share = (count / count.sum()).double().cpu().numpy()
    return [int(m) for m in apportion(share, samples * int(present.sum()))]


def virtual_features(
    statistics: Statistics,
    counts: list[int],
    key: int,
    dtype: torch.dtype = torch.float64,
    transform: Callable[[Tensor], Tensor] = lambda z: z,
) -> tuple[Tensor, Tensor]:
    """Draw features from N(μ_c, Σ_c) for each class (CCVR, Algorithm 1).

    A draw is μ + Σ^½ ε with the symmetric root of Σ, which is the same on every machine, unlike the signs of
    eigenvectors. Eigenvalues are clipped at 0: Σ is singular if a class has fewer samples than feature dimensions. Each
    class has its own generator, so the number of draws for one class does not affect the others.

    Args:
        statistics: Class statistics.
        counts: Number of features to draw per class.
        key: Random key.
        dtype: Type of the returned features; draws are in float64.
        transform: Function applied to the features of each class before the conversion to `dtype`.

    Returns:
        Features [M, d] and labels [M].
    """
    d, device = statistics.features, statistics.sum.device
    features = torch.empty(sum(counts), d, dtype=dtype, device=device)  # M may be millions: allocate once
    begin = 0
    for places in torch.split(torch.arange(statistics.classes, device=device), classes_at_once(d)):
        part = statistics.of_classes(places)
        for c, mean, covariance in zip(places.tolist(), part.mean(), part.covariance(), strict=True):
            if not counts[c]:
                continue
            generator = random.generator(random.key(key, c))
            noise = torch.randn(counts[c], d, generator=generator, dtype=torch.float64).to(device)
            drawn = transform(mean + _multiply_by_root(noise, covariance))
            features[begin : begin + counts[c]] = drawn
            begin += counts[c]
    return features, torch.repeat_interleave(torch.tensor(counts, device=device))


def _multiply_by_root(noise: Tensor, covariance: Tensor) -> Tensor:
    if covariance.dim() == 1:
        return noise * covariance.clamp_min(0).sqrt()
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
    return noise @ root
