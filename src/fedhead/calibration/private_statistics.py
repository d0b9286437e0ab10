"""Noise on class statistics, and statistics that features could have from noisy ones."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from fedhead.calibration.statistics import Statistics
from fedhead.calibration.symmetric import diagonal_places, pack
from fedhead.core.system.log import warn_once
from fedhead.core.tree.tree import Tree
from fedhead.privacy import noise
from fedhead.privacy.dp import Deviations

PENALTY = 0.4  # κ, see `noise_penalty`; chosen among 0.06 to 0.4 on held-out training samples of CIFAR-10
_PRESENT = 2.0  # deviations of a count's noise below which a class counts as absent


def add_noise(sums: Tree, deviations: Deviations, source: noise.Generator) -> Tree:
    """Add Gaussian noise to one client's `count`, `sum` and `outer`.

    The result is rounded to a millionth of the noise: the last bits of a floating-point sum may reveal its terms
    (Mironov, 2012).
    """
    d, single = sums["sum"].shape[-1], torch.ones((), dtype=torch.float64)
    scales = {"count": deviations.count * single, "sum": deviations.sum * single}
    if "outer" in sums:
        size = sums["outer"].shape[-1]
        scale = torch.full((size,), deviations.moment, dtype=torch.float64)
        if size > d:  # upper triangles: an entry off the diagonal stands for two
            scale /= math.sqrt(2)
            scale[diagonal_places(d)] = deviations.moment
        scales["outer"] = scale

    def noisy(name: str) -> Tensor:
        exact, scale = sums[name], scales[name]
        drawn = noise.gaussian(source, tuple(exact.shape), 1.0) * scale
        step = torch.exp2(scale.clamp_min(1e-30).log2().floor() - 20)
        rounded: Tensor = ((exact.double().cpu() + drawn) / step).round() * step
        return rounded.to(exact)

    return sums.replace({name: noisy(name) for name in scales})


def denoise(statistics: Statistics, deviations: Deviations, absent: bool) -> Statistics:
    """Return statistics that features could have: no negative counts or variances.

    Pooled second moments are projected so that the scatter within classes is positive semi-definite; others are
    clipped by those who use them. This reads the released numbers alone, so it costs no privacy.

    Args:
        statistics: Sum of the clients' noisy statistics.
        deviations: Deviations of the noise on the sum.
        absent: Whether classes may have no samples: those whose count is within the noise are then left out.
    """
    present = statistics.count > (max(_PRESENT * deviations.count, 1.0) if absent else -torch.inf)
    if not bool(present.all()):
        names = ", ".join(str(c) for c in torch.nonzero(~present).flatten().tolist())
        warn_once(f"classes {names} have no more samples than the noise on their counts: they are never predicted")
    count = torch.where(present, statistics.count.clamp_min(max(deviations.count, 1.0)), 0.0)
    cleaned = replace(statistics, count=count, sum=torch.where(present[:, None], statistics.sum, 0.0))
    if cleaned.kind in ("full", "diagonal"):
        cleaned = replace(cleaned, outer=torch.where(present[:, None], cleaned.outer, 0.0))
    elif cleaned.kind == "pooled":
        within = cleaned.within()
        values, vectors = torch.linalg.eigh(within)
        projected = (vectors * values.clamp_min(0)) @ vectors.mT
        cleaned = replace(cleaned, outer=pack(cleaned.second_moment() - within + projected))
    return replace(cleaned, noise=deviations.moment)


def noise_penalty(statistics: Statistics) -> float:
    """Return the penalty λ = κσ√d of a second moment with noise of deviation σ, whose spectral norm is about σ√(2d)."""
    return PENALTY * statistics.noise * math.sqrt(statistics.features)
