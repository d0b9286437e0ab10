"""Features in the plane: t-SNE, to be colored by truth and by what a classifier says (CCVR, Fig. 5 and 13)."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from fedhead.core import random
from fedhead.core.errors import BadInput


def tsne(z: Tensor, seed: int = 0, perplexity: float = 30.0) -> Tensor:
    """Features in the plane, [n, 2]; the same for the same seed."""
    from sklearn.manifold import TSNE

    if len(z) < 4:
        raise BadInput(f"t-SNE needs at least 4 samples, not {len(z)}")
    fit = TSNE(
        init="pca",
        perplexity=min(perplexity, (len(z) - 1) / 3),
        random_state=random.key(seed, "tsne") % 2**32,
        n_jobs=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of its own internals
        return torch.from_numpy(fit.fit_transform(z.double().cpu().numpy())).double()


def pick(y: Tensor, count: int, seed: int = 0) -> Tensor:
    """`count` rows drawn by key, in rising order; all if there are no more."""
    order = torch.from_numpy(random.permutation(random.key(seed, "embed"), len(y)))
    return order[:count].sort().values
