"""Class statistics of features: counts, sums and sums of outer products, which add up over samples and clients.

The sums determine the mean and the unbiased covariance of each class, for one client (CCVR, Eq. 2) and for all
(Eq. 3 and 4): what clients send is added, never averaged, so merging in any order gives the statistics of the pooled
features. Sums are float64. Symmetric matrices are stored as their upper triangle, one row per class.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedhead.core.errors import BadInput
from fedhead.core.tree import Tree

CovarianceKind = Literal["full", "diagonal"]


@dataclass(frozen=True)
class Statistics:
    """The sums of features per class.

    Args:
        count: Number of samples N_c, [C].
        sum: Sum of features Σ z, [C, d].
        outer: Sum of outer products Σ zzᵀ as upper triangles [C, d(d+1)/2], or of squares only [C, d].
        extractor: Fingerprint of the model that computed the features; "" if unknown.

    >>> one = from_features(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0]), classes=2)
    >>> one.mean()[0].tolist(), one.covariance()[0].tolist()
    ([2.0, 0.0], [[2.0, 0.0], [0.0, 0.0]])
    """

    count: Tensor
    sum: Tensor
    outer: Tensor
    extractor: str = ""

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return len(self.count)

    @property
    def features(self) -> int:
        """Dimension of the features d."""
        return self.sum.shape[1]

    @property
    def kind(self) -> CovarianceKind:
        """Whether covariances are full or only their diagonals."""
        return "diagonal" if self.outer.shape[1] == self.features else "full"

    @property
    def nbytes(self) -> int:
        """Size of the sums in bytes."""
        return self.tree().nbytes

    def tree(self) -> Tree:
        """Return the sums as named tensors, for sending and saving."""
        return Tree(count=self.count, sum=self.sum, outer=self.outer)

    def __add__(self, other: Statistics) -> Statistics:
        _check_same_model(self, other)
        extractor = self.extractor or other.extractor
        return Statistics(self.count + other.count, self.sum + other.sum, self.outer + other.outer, extractor)

    def mean(self) -> Tensor:
        """Return μ_c, [C, d] (Eq. 3); zero for a class without samples."""
        return self.sum / self.count.clamp_min(1)[:, None]

    def covariance(self) -> Tensor:
        """Return the unbiased Σ_c (Eq. 4), [C, d, d] or its diagonal [C, d].

        It is zero for a class with fewer than two samples.
        """
        mean, share = self.mean(), (self.count - 1).clamp_min(1)
        if self.kind == "diagonal":
            scatter = (self.outer - self.sum * mean).clamp_min(0)
            return torch.where(self.count[:, None] > 1, scatter / share[:, None], 0)
        scatter = unpack(self.outer, self.features) - self.sum[:, :, None] * mean[:, None, :]
        return torch.where(self.count[:, None, None] > 1, scatter / share[:, None, None], 0)

    def of_classes(self, places: Tensor) -> Statistics:
        """Return the statistics of some classes.

        Args:
            places: Numbers of the classes.

        Returns:
            Their statistics, in that order.
        """
        return Statistics(self.count[places], self.sum[places], self.outer[places], self.extractor)

    def without_small_classes(self, min_class_count: int) -> Statistics:
        """Return the statistics with all sums of small classes set to zero, as if there were no samples of them.

        Args:
            min_class_count: The fewest samples of a class that is kept.

        Returns:
            Statistics of the same shapes.
        """
        large = self.count >= min_class_count
        count, total, outer = (self.count * large, self.sum * large[:, None], self.outer * large[:, None])
        return Statistics(count, total, outer, self.extractor)

    def diagonal(self) -> Statistics:
        """Return the statistics with only the diagonals of the covariances."""
        if self.kind == "diagonal":
            return self
        rows, columns = triangle(self.features, self.outer.device)
        return Statistics(self.count, self.sum, self.outer[:, rows == columns], self.extractor)


def from_features(z: Tensor, y: Tensor, classes: int, diagonal: bool = False) -> Statistics:
    """Compute the statistics of features.

    Args:
        z: Features, [N, d].
        y: Labels, [N].
        classes: Number of classes.
        diagonal: Whether to keep only the diagonals of the covariances.
    """
    count, total, outer = class_sums(z, y, torch.ones_like(y, dtype=z.dtype), classes, diagonal)
    return Statistics(count, total, outer)


def merge(parts: Iterable[Statistics]) -> Statistics:
    """Add up the statistics of several clients.

    Args:
        parts: Statistics of the same model; may be a generator, since only the running total is kept in memory.

    Raises:
        BadInput: If there are none, or they belong to different models.
    """
    total: Statistics | None = None
    for part in parts:
        if total is None:
            total = Statistics(part.count.clone(), part.sum.clone(), part.outer.clone(), part.extractor)
        else:
            _check_same_model(total, part)
            total = replace(total, extractor=total.extractor or part.extractor)
            total.count.add_(part.count)
            total.sum.add_(part.sum)
            total.outer.add_(part.outer)
        del part  # before the next one is created or read
    if total is None:
        raise BadInput("no statistics to merge: give those of at least one client")
    return total


def _check_same_model(a: Statistics, b: Statistics) -> None:
    for what in ("classes", "features", "kind"):
        mine, theirs = getattr(a, what), getattr(b, what)
        if mine != theirs:
            raise BadInput(f"statistics of a different model: {what}: {theirs} here, {mine} elsewhere")
    if a.extractor and b.extractor and a.extractor != b.extractor:
        raise BadInput("statistics of a different model: the extractors' weights differ; use the same model for all")


# -- the sums of a batch ------------------------------------------------------------------------------
@torch.library.custom_op("fedhead::class_sums", mutates_args=())
def class_sums(z: Tensor, y: Tensor, weight: Tensor, classes: int, diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Compute counts [C], sums [C, d] and sums of outer products in float64, as `Statistics` holds them.

    The batch is sorted by class first, so that each sample is only multiplied with those of its own class. That
    requires reading the labels, which a vectorized function can't do, hence a custom operator. Weights are 0 or 1.
    """
    d = z.shape[1]
    place = torch.where(weight > 0, y, classes)  # padding sorts last and is ignored
    order = torch.argsort(place, stable=True)
    sizes = torch.bincount(place, minlength=classes + 1)[:classes]
    sorted_z = z[order].double()
    total = z.new_zeros(classes, d, dtype=torch.float64)
    outer = z.new_zeros(classes, d if diagonal else d * (d + 1) // 2, dtype=torch.float64)
    if not diagonal:
        rows, columns = triangle(d, z.device)
        upper = rows * d + columns  # places in the flattened matrix: indexing by rows and columns takes twice as long
    begin = 0
    for c, size in enumerate(sizes.tolist()):
        if size:
            own = sorted_z[begin : begin + size]
            total[c] = own.sum(0)
            if diagonal:
                outer[c] = own.square().sum(0)
            else:
                torch.index_select((own.T @ own).flatten(), 0, upper, out=outer[c])
            begin += size
    return sizes.double(), total, outer


@class_sums.register_fake
def _(z: Tensor, y: Tensor, weight: Tensor, classes: int, diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:
    d = z.shape[1]
    shapes = ((classes,), (classes, d), (classes, d if diagonal else d * (d + 1) // 2))
    count, total, outer = (z.new_empty(shape, dtype=torch.float64) for shape in shapes)
    return count, total, outer


@class_sums.register_vmap
def _(info, in_dims, z, y, weight, classes, diagonal):  # type: ignore[no-untyped-def]  # torch's signature
    def every(t: Tensor, dim: int | None) -> Tensor:
        return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)

    z, y, weight = (every(t, dim) for t, dim in zip((z, y, weight), in_dims, strict=False))
    # give every client its own classes, so that the labels of all clients are read at once
    own = y + classes * torch.arange(info.batch_size, device=y.device).unsqueeze(1)
    found = class_sums(z.flatten(0, 1), own.flatten(), weight.flatten(), info.batch_size * classes, diagonal)
    return tuple(t.unflatten(0, (info.batch_size, classes)) for t in found), (0, 0, 0)


# -- symmetric matrices -------------------------------------------------------------------------------
def triangle(d: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the row and column indices of the upper triangle of a d×d matrix, in storage order."""
    rows, columns = torch.triu_indices(d, d, device=device)
    return rows, columns


def pack(matrix: Tensor) -> Tensor:
    """Extract the upper triangles of symmetric matrices: [..., d, d] to [..., d(d+1)/2]."""
    rows, columns = triangle(matrix.shape[-1], matrix.device)
    return matrix[..., rows, columns]


def unpack(packed: Tensor, d: int) -> Tensor:
    """Rebuild symmetric matrices from their upper triangles: [..., d(d+1)/2] to [..., d, d]."""
    rows, columns = triangle(d, packed.device)
    place = torch.empty(d, d, dtype=torch.long, device=packed.device)
    place[rows, columns] = place[columns, rows] = torch.arange(packed.shape[-1], device=packed.device)
    return packed[..., place]


def classes_at_once(features: int) -> int:
    """Return of how many classes full matrices are held together: 8 MB of them, however many classes there are."""
    return max(1, 2**20 // features**2)


def _pieces(statistics: Statistics) -> list[Statistics]:
    """Split statistics into those of a few classes each."""
    tensors = (statistics.count, statistics.sum, statistics.outer)
    split = (torch.split(t, classes_at_once(statistics.features)) for t in tensors)
    return [Statistics(*part) for part in zip(*split, strict=True)]


# -- low rank -----------------------------------------------------------------------------------------
def low_rank_sums(count: Tensor, total: Tensor, outer: Tensor, rank: int) -> Tree:
    """Reduce the scatter of each class to its leading directions, keeping its diagonal exactly.

    Rank 0 keeps only diagonals, rank d everything. Can be vectorized over clients.

    Args:
        count: [C].
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
    if statistics.kind == "diagonal" or not 0 <= rank <= statistics.features:
        raise BadInput(
            f"rank {rank} must be 0 … {statistics.features} (the feature dimension), and the covariances full"
        )
    return low_rank_sums(statistics.count, statistics.sum, statistics.outer, rank)


def from_tree(sent: Tree) -> Statistics:
    """Restore statistics from the tree that a client sent, expanding a low rank to full covariances."""
    if "factor" not in sent:
        return Statistics(sent["count"], sent["sum"], sent["outer"])
    count, total, factor, square = (sent[name].double() for name in ("count", "sum", "factor", "square"))
    outer = []
    for part, lead in zip(
        _pieces(Statistics(count, total, square)), torch.split(factor, classes_at_once(total.shape[1])), strict=True
    ):
        scatter, mean = lead.mT @ lead, part.mean()
        rest = (part.outer - part.sum * mean - scatter.diagonal(dim1=-2, dim2=-1)).clamp_min(0)
        outer.append(pack(scatter + torch.diag_embed(rest) + part.sum[:, :, None] * mean[:, None, :]))
    return Statistics(count, total, torch.cat(outer))
