"""Separability of the classes' Gaussians, and the expected gain of calibration (CCVR, Section 5.4)."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedhead.calibration.statistics import Statistics
from fedhead.calibration.virtual_features import virtual_features
from fedhead.core.system.errors import require
from fedhead.core.training import random
from fedhead.core.tree.tree import Tree
from fedhead.models.split_model import SplitModel, classify


def sliced_wasserstein(statistics: Statistics, samples: int = 500, projections: int = 100, seed: int = 0) -> Tensor:
    """Compute the sliced Wasserstein distance between the Gaussians of every two classes.

    Args:
        statistics: Class statistics.
        samples: Samples drawn per class.
        projections: Number of projections.
        seed: Seed of the draws.

    Returns:
        Distances, [C, C]; NaN for absent classes.

    Raises:
        BadInput: If fewer than two classes have samples.
    """
    present = torch.nonzero(statistics.count > 0).flatten().tolist()
    require(len(present) >= 2, "separability needs samples of at least two classes")
    counts = [samples if c in present else 0 for c in range(statistics.classes)]
    z, y = virtual_features(statistics, counts, random.key(seed, "separability"))
    directions = torch.from_numpy(np.random.RandomState(seed).normal(0, 1, (z.shape[1], projections)))
    slices = z.double().cpu() @ (directions / directions.norm(dim=0))
    # In one dimension, optimal transport between equally many samples pairs them in order.
    ordered = {c: slices[y.cpu() == c].sort(0).values for c in present}
    distance = torch.full((statistics.classes, statistics.classes), float("nan"), dtype=torch.float64)
    for a, b in product(present, repeat=2):
        distance[a, b] = (ordered[a] - ordered[b]).square().mean().sqrt()
    return distance


def mean_distance(distance: Tensor) -> float:
    """Return the mean over pairs of different classes; larger means more separable."""
    upper = distance[tuple(torch.triu_indices(len(distance), len(distance), offset=1))]
    return float(upper[~upper.isnan()].mean())


class Forecast(NamedTuple):
    """Expected effect of calibration in percent, from class statistics and the current head only."""

    separability: float  # mean sliced Wasserstein distance between classes
    present: float  # accuracy of the current head on virtual features
    reachable: float  # accuracy of the best head for Gaussians of equal covariance (linear discriminant analysis)
    gain: float  # expected gain of calibration, in points


def forecast(model: SplitModel, head: Tree, statistics: Statistics, samples: int = 500, seed: int = 0) -> Forecast:
    """Forecast the gain of calibration without training or testing.

    The current head is compared with the best linear classifier for the classes' Gaussians, on virtual features in
    place of a balanced test set. Calibration can gain at most the difference of their accuracies. The more separable
    the Gaussians, the higher the best accuracy (CCVR, Fig. 6).

    Args:
        model: Model with the classifier's architecture.
        head: Parameters of the classifier by full name.
        statistics: Class statistics.
        samples: Virtual features per class.
        seed: Seed of the draws.
    """
    counts = [samples if n > 0 else 0 for n in statistics.count.tolist()]
    z, y = virtual_features(statistics, counts, random.key(seed, "forecast"))
    weight = next(iter(head.values()))
    present = classify(model, head, z.to(weight.dtype)).argmax(1) == y
    reachable = discriminant(statistics, z).argmax(1) == y
    before, after = (100 * float(correct.double().mean()) for correct in (present, reachable))
    return Forecast(mean_distance(sliced_wasserstein(statistics, samples, seed=seed)), before, after, after - before)


def discriminant(statistics: Statistics, z: Tensor) -> Tensor:
    """Compute scores by linear discriminant analysis with equal priors, [n, C]: μᵀΣ⁻¹z − ½ μᵀΣ⁻¹μ.

    Σ is the mean covariance within classes, weighted by their counts, with a small multiple of the identity added so
    that it is invertible if features have more dimensions than there are samples.
    """
    mean, covariance = statistics.mean(), statistics.covariance()
    if covariance.dim() == 2:
        covariance = torch.diag_embed(covariance)
    share = (statistics.count / statistics.count.sum())[:, None, None]
    within = (share * covariance).sum(0)
    within.diagonal().add_(1e-3 * within.diagonal().mean() + 1e-12)
    direction = torch.linalg.solve(within, mean.T)  # Σ⁻¹μ, [d, C]
    scores: Tensor = z.double() @ direction - 0.5 * (mean.T * direction).sum(0)
    return scores.masked_fill(statistics.count == 0, -torch.inf)
