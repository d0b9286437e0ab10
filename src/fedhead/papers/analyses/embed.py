"""Embedding of features in the plane with t-SNE (CCVR, Fig. 5 and 13)."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from fedhead.core.system.errors import require
from fedhead.core.training import random


def tsne(z: Tensor, seed: int = 0, perplexity: float = 30.0) -> Tensor:
    """Embed features in the plane.

    Args:
        z: Features, [n, d].
        seed: Seed; the same seed gives the same result.
        perplexity: Perplexity of t-SNE; reduced for few samples.

    Returns:
        Points, [n, 2].
    """
    from sklearn.manifold import TSNE

    require(len(z) >= 4, f"t-SNE needs at least 4 samples, not {len(z)}")
    fit = TSNE(
        init="pca",
        perplexity=min(perplexity, (len(z) - 1) / 3),
        random_state=random.key(seed, "tsne") % 2**32,
        n_jobs=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about scikit-learn's internals
        return torch.from_numpy(fit.fit_transform(z.double().cpu().numpy())).double()


def sample_rows(y: Tensor, count: int, seed: int = 0) -> Tensor:
    """Draw up to `count` random indices, sorted."""
    order = torch.from_numpy(random.permutation(random.key(seed, "embed"), len(y)))
    return order[:count].sort().values
