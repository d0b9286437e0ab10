"""Class statistics of features: counts, sums and sums of outer products, which add up over samples and clients.

They determine the mean and the unbiased covariance of each class, for one client (CCVR, Eq. 2) and for all clients
(Eq. 3 and 4). Clients' sums are added, never averaged, so merging in any order gives the statistics of the pooled
features. Sums are float64. Symmetric matrices are stored as their upper triangle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedhead.calibration.sums import Kind, batch_sums
from fedhead.calibration.symmetric import diagonal_places, unpack
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree


@dataclass(frozen=True)
class Statistics:
    """Sums of features per class.

    Args:
        count: Number of samples N_c, [C].
        sum: Sum of features Σ z, [C, d].
        outer: Second moments, whose shape gives the kind of the statistics: sums of outer products Σ zzᵀ per class as
            upper triangles [C, d(d+1)/2] (full), of squares only [C, d] (diagonal), one triangle for all classes
            [d(d+1)/2] (pooled), or empty, [0] (means).
        extractor: Fingerprint of the model that computed the features; "" if unknown.
        transform: Fingerprint of the transform of its inputs; "" if unknown.
        members: Fingerprints of the added parts, if tracked (`fedhead.statistics`).
        noise: Deviation of the noise on diagonals of the second moments, from differential privacy.

    >>> one = from_features(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0]), classes=2)
    >>> one.mean()[0].tolist(), one.covariance()[0].tolist()
    ([2.0, 0.0], [[2.0, 0.0], [0.0, 0.0]])
    """

    count: Tensor
    sum: Tensor
    outer: Tensor
    extractor: str = ""
    transform: str = ""
    members: frozenset[str] = frozenset()
    noise: float = 0.0

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return len(self.count)

    @property
    def features(self) -> int:
        """Dimension of the features d."""
        return self.sum.shape[1]

    @property
    def kind(self) -> Kind:
        """Kind of the second moments."""
        if self.outer.dim() == 1:
            return "pooled" if len(self.outer) else "means"
        return "diagonal" if self.outer.shape[1] == self.features else "full"

    def tree(self) -> Tree:
        """Return the sums as named tensors, for messages and files."""
        means = Tree(count=self.count, sum=self.sum)
        return means if self.kind == "means" else means.replace(outer=self.outer)

    def __add__(self, other: Statistics) -> Statistics:
        return merge([self, other])

    def mean(self) -> Tensor:
        """Return μ_c, [C, d] (Eq. 3); zero for a class without samples."""
        return self.sum / self.count.clamp_min(1)[:, None]

    def covariance(self) -> Tensor:
        """Return the unbiased Σ_c (Eq. 4), [C, d, d] or its diagonal [C, d].

        It is zero for a class with fewer than two samples.

        Raises:
            BadInput: If the statistics have no covariance per class.
        """
        self.need("full", "diagonal")
        mean, share = self.mean(), (self.count - 1).clamp_min(1)
        if self.kind == "diagonal":
            scatter = (self.outer - self.sum * mean).clamp_min(0)
            return torch.where(self.count[:, None] > 1, scatter / share[:, None], 0)
        scatter = unpack(self.outer, self.features) - self.sum[:, :, None] * mean[:, None, :]
        return torch.where(self.count[:, None, None] > 1, scatter / share[:, None, None], 0)

    def second_moment(self) -> Tensor:
        """Return Σ zzᵀ over all samples of all classes, [d, d].

        Raises:
            BadInput: If the statistics hold only means or diagonals.
        """
        self.need("pooled", "full")
        return unpack(self.outer if self.kind == "pooled" else self.outer.sum(0), self.features)

    def center(self) -> Tensor:
        """Return the mean m of all features of all classes, [d]."""
        return self.sum.sum(0) / self.count.sum().clamp_min(1)

    def scatter(self) -> Tensor:
        """Return the scatter Σ (z − m)(z − m)ᵀ of all samples about their mean, [d, d].

        Raises:
            BadInput: If the statistics hold only means or diagonals.
        """
        return self.second_moment() - self.count.sum() * torch.outer(self.center(), self.center())

    def within(self) -> Tensor:
        """Return the scatter within classes Σ (z − μ_y)(z − μ_y)ᵀ over all samples, [d, d].

        Raises:
            BadInput: If the statistics hold only means or diagonals.
        """
        deviation = torch.where(self.count[:, None] > 0, self.mean() - self.center(), 0)
        return self.scatter() - (self.count[:, None] * deviation).mT @ deviation

    def need(self, *kinds: Kind) -> None:
        """Check that the statistics are of a required kind.

        Args:
            *kinds: Accepted kinds.

        Raises:
            BadInput: If they are of another kind.
        """
        one_dimensional = self.kind == "diagonal" and self.features == 1  # a 1×1 matrix is its diagonal
        if self.kind not in kinds and not (one_dimensional and "full" in kinds):
            raise BadInput(
                f"the statistics are of kind {self.kind}, and this needs {' or '.join(kinds)}: "
                f"collect them again with kind {kinds[0]}"
            )

    def of_classes(self, places: Tensor) -> Statistics:
        """Return the statistics of some classes.

        Args:
            places: Numbers of the classes; with pooled statistics, the other classes must have no samples.

        Returns:
            Statistics of these classes, in this order.
        """
        outer = self.outer[places] if self.outer.dim() == 2 else self.outer
        return replace(self, count=self.count[places], sum=self.sum[places], outer=outer)

    def diagonal(self) -> Statistics:
        """Return the statistics reduced to the diagonals of the covariances."""
        self.need("diagonal", "full")
        if self.kind == "diagonal":
            return self
        return replace(self, outer=self.outer[:, diagonal_places(self.features, self.outer.device)])


def from_features(z: Tensor, y: Tensor, classes: int, kind: Kind = "full") -> Statistics:
    """Compute the statistics of features.

    Args:
        z: Features, [N, d].
        y: Labels, [N].
        classes: Number of classes.
        kind: Kind of the second moments.
    """
    return from_sums(batch_sums(z, y, torch.ones_like(y, dtype=z.dtype), classes, kind))


def from_sums(sums: Tree, extractor: str = "", transform: str = "") -> Statistics:
    """Build statistics from named sums, the inverse of `Statistics.tree`."""
    count = sums["count"]
    return Statistics(count, sums["sum"], sums.get("outer", count.new_zeros(0)), extractor, transform)


def merge(parts: Iterable[Statistics], sources: Iterable[str] = ()) -> Statistics:
    """Merge the statistics of several clients.

    Args:
        parts: Statistics of each client; may be a lazy iterable.
        sources: Source of each part, for error messages.

    Raises:
        BadInput: If no part is given, parts differ in model, kind or transform, or a client is in two parts.
    """
    names, total = iter(sources), None
    for part in parts:
        source = next(names, "")
        if total is None:
            total = replace(part, count=part.count.clone(), sum=part.sum.clone(), outer=part.outer.clone())
        else:
            check_same_model(total, part, source)
            if twice := total.members & part.members:
                raise BadInput(
                    f"{_prefix(source)}the statistics {min(twice)} are in both: nobody is added twice; leave them out, "
                    "or subtract them first"
                )
            total = replace(
                total,
                extractor=total.extractor or part.extractor,
                transform=total.transform or part.transform,
                members=total.members | part.members,
            )
            total.count.add_(part.count)
            total.sum.add_(part.sum)
            total.outer.add_(part.outer)
        del part  # free memory before the next part is read
    if total is None:
        raise BadInput("no statistics to merge: give those of at least one client")
    return total


def check_same_model(a: Statistics, b: Statistics, source: str = "") -> None:
    """Raise `BadInput` if statistics can't be added: they differ in kind, model or transform."""
    start = f"{_prefix(source)}statistics of"
    if a.kind != b.kind:
        raise BadInput(f"{start} another kind: {b.kind} here, {a.kind} elsewhere; use one kind for all")
    for name in ("classes", "features"):
        mine, theirs = getattr(a, name), getattr(b, name)
        if mine != theirs:
            raise BadInput(f"{start} a different model: {name}: {theirs} here, {mine} elsewhere")
    if a.extractor and b.extractor and a.extractor != b.extractor:
        raise BadInput(f"{start} a different model: the extractors' weights differ; use the same model for all")
    stated = bool(a.extractor and b.extractor) or bool(a.transform and b.transform)
    if stated and a.transform != b.transform:  # with a known model, an empty fingerprint means no transform
        raise BadInput(f"{start} inputs that were transformed differently: use the same normalization and size for all")


def _prefix(source: str) -> str:
    return f"{source}: " if source else ""
