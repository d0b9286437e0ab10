"""Low-rank statistics: the leading directions of each class's scatter matrix, and its exact diagonal."""

from __future__ import annotations

import torch
from torch import Tensor

from fedhead.calibration.statistics import Statistics, from_sums
from fedhead.calibration.symmetric import classes_at_once, pack, unpack
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree


def low_rank_sums(count: Tensor, total: Tensor, outer: Tensor, rank: int) -> Tree:
    """Reduce the scatter matrix of each class to its leading directions, with an exact diagonal.

    Rank 0 keeps only diagonals, rank d everything. Can be vectorized over clients.

    Args:
        count: Samples per class, [C].
        total: Sums, [C, d].
        outer: Sums of outer products as upper triangles, [C, d(d+1)/2].
        rank: Number of directions to keep.
    """
    squares, factors = [], []
    for part in _pieces(Statistics(count, total, outer)):
        full = unpack(part.outer, part.features)
        values, vectors = torch.linalg.eigh(full - part.sum[:, :, None] * part.mean()[:, None, :])
        lead = slice(values.shape[-1] - rank, None)
        factors.append(values[:, lead].clamp_min(0).sqrt()[:, :, None] * vectors[:, :, lead].mT)
        squares.append(full.diagonal(dim1=-2, dim2=-1))
    return Tree(count=count, sum=total, square=torch.cat(squares), factor=torch.cat(factors))


def to_low_rank(statistics: Statistics, rank: int) -> Tree:
    """Reduce statistics with full covariances to low rank; see `low_rank_sums`."""
    if statistics.kind != "full" or not 0 <= rank <= statistics.features:
        raise BadInput(
            f"rank {rank} must be 0 … {statistics.features} (the feature dimension), and the covariances full"
        )
    return low_rank_sums(statistics.count, statistics.sum, statistics.outer, rank)


def from_tree(sent: Tree) -> Statistics:
    """Restore statistics from a client's tree; low-rank ones are expanded to full covariances."""
    if "factor" not in sent:
        return from_sums(sent)
    count, total, factor, square = (sent[name].double() for name in ("count", "sum", "factor", "square"))
    outer = []
    for part, lead in zip(
        _pieces(Statistics(count, total, square)), torch.split(factor, classes_at_once(total.shape[1])), strict=True
    ):
        scatter, mean = lead.mT @ lead, part.mean()
        rest = (part.outer - part.sum * mean - scatter.diagonal(dim1=-2, dim2=-1)).clamp_min(0)
        outer.append(pack(scatter + torch.diag_embed(rest) + part.sum[:, :, None] * mean[:, None, :]))
    return Statistics(count, total, torch.cat(outer))


def _pieces(statistics: Statistics) -> list[Statistics]:
    """Split statistics into those of a few classes each."""
    tensors = (statistics.count, statistics.sum, statistics.outer)
    split = (torch.split(t, classes_at_once(statistics.features)) for t in tensors)
    return [Statistics(*part) for part in zip(*split, strict=True)]
