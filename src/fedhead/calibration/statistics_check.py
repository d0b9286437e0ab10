"""Checks that class statistics can come from features, before they are used."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedhead.calibration.statistics import Statistics, merge
from fedhead.calibration.symmetric import classes_at_once, diagonal_places, unpack
from fedhead.core.system.errors import BadInput

_NEGATIVE = 1e-7  # a negative eigenvalue beyond this share of the largest one is not a rounding error
_MOST = 2.0**53  # largest number of samples: float64 represents all smaller integers exactly
_LARGEST = 1e18  # largest feature size: squares of larger features overflow in float32


def check(statistics: Statistics, source: str, full: bool = True, samples: float = math.inf) -> Statistics:
    """Check that statistics could have been computed from features.

    Args:
        statistics: Statistics to check.
        source: Source of the statistics, for error messages.
        full: Whether to check full covariances for negative eigenvalues, which is costly; False: only diagonals.
        samples: Maximum number of samples over all classes.

    Returns:
        The same statistics.

    Raises:
        BadInput: With the source and the reason.
    """
    for name, t in statistics.tree().items():
        # a finite sum implies finite terms, and is ten times faster than a test of each
        if not bool(torch.isfinite(t.sum())) and not bool(torch.isfinite(t).all()):
            raise BadInput(f"{source}: {name!r} is not finite; leave this client out, its model has diverged")
    of_classes = [statistics.outer] if statistics.outer.dim() == 2 else []  # second moments with one row per class
    check_counts(source, statistics.count, samples, statistics.sum, *of_classes)
    if (size := feature_size(statistics)) > _LARGEST:
        raise BadInput(f"{source}: features of size {size:.3g} are too large to compute with; recompute the statistics")
    if statistics.kind == "pooled" and not bool(statistics.count.any()) and bool(statistics.outer.any()):
        raise BadInput(f"{source}: there is a second moment but no sample; recompute the statistics")
    scatter, slack = _variances(statistics)
    lowest = scatter.amin(1)
    if full and statistics.kind in ("full", "pooled"):
        lowest = torch.minimum(lowest, _indefinite(statistics, slack))
    for c in torch.nonzero(lowest < -slack).flatten().tolist():
        whose = "within classes" if statistics.kind == "pooled" else f"of class {c}"
        raise BadInput(
            f"{source}: the covariance {whose} is not positive semi-definite "
            f"(an eigenvalue of the scatter is {float(lowest[c]):.3g}): no features have it, recompute the statistics"
        )
    return statistics


def feature_size(statistics: Statistics) -> float:
    """Return the size of the features: the root mean square of their norm, or that of their class means.

    Args:
        statistics: Statistics of any kind.

    Returns:
        The size; 0 without samples, infinite on overflow.
    """
    squares = _squares(statistics).sum()
    return math.sqrt(max(float(squares / statistics.count.sum().clamp_min(1)), 0.0))


def merge_checked(sources: Sequence[str], part: Callable[[int], Statistics]) -> Statistics:
    """Merge statistics with checks that name the source of invalid ones.

    Args:
        sources: Source of each part, for error messages.
        part: Function that returns the part with a given index; called lazily, since parts are large.

    Raises:
        BadInput: With the source and the reason.
    """
    merged = merge((check(part(i), source, full=False) for i, source in enumerate(sources)), sources)
    try:
        return check(merged, "the merged statistics")
    except BadInput:
        for i, source in enumerate(sources):  # find the invalid part
            check(part(i), source)
        raise


def check_counts(source: str, count: Tensor, samples: float, *sums: Tensor) -> None:
    """Check that class counts are possible for a client.

    Args:
        source: Source of the statistics, for error messages.
        count: Samples per class, [C].
        samples: Number of the client's samples.
        *sums: Sums per class, [C, ...].

    Raises:
        BadInput: If counts are negative or fractional, exceed the samples, or are 0 for a class with sums.
    """
    for c in torch.nonzero((count < 0) | (count != count.round())).flatten().tolist():
        raise BadInput(f"{source}: {float(count[c]):g} samples of class {c}: counts must be whole and not negative")
    total = float(count.sum(dtype=torch.float64))
    if total > samples:
        raise BadInput(f"{source}: {total:g} samples in all classes together, but the client has {samples:g}")
    if total > _MOST:
        raise BadInput(f"{source}: {total:g} samples are too many to count; recompute the statistics")
    for part in sums:
        for c in torch.nonzero((count == 0) & (part != 0).flatten(1).any(1)).flatten().tolist():
            raise BadInput(f"{source}: class {c} has sums but no samples; recompute them")


def _squares(statistics: Statistics) -> Tensor:
    """Return the sums of squares per class, [C, d]: one row for `pooled`; for `means`, those of the means."""
    if statistics.kind == "means":
        return statistics.sum * statistics.mean()
    if statistics.kind == "pooled":
        return statistics.outer[diagonal_places(statistics.features, statistics.outer.device)][None]
    return statistics.diagonal().outer


def _variances(statistics: Statistics) -> tuple[Tensor, Tensor]:
    """Return the diagonals of the scatter matrices, [C, d], and the tolerance for rounding errors, [C].

    Pooled statistics have one row, the scatter within all classes. For `means` the diagonals are 0.
    """
    squares, between = _squares(statistics), statistics.sum * statistics.mean()
    if statistics.kind == "pooled":
        between = between.sum(0)
    return squares - between, _NEGATIVE * squares.abs().amax(1).clamp_min(1e-300)


def _indefinite(statistics: Statistics, slack: Tensor) -> Tensor:
    """Return the lowest eigenvalue of each scatter matrix that is not positive semi-definite, 0 for the others.

    A Cholesky decomposition, which is much faster than eigenvalues, finds the indefinite ones.
    """
    d = statistics.features
    if statistics.kind == "pooled":
        return _lowest(statistics.within()[None], slack)
    eigenvalues = torch.zeros_like(slack)
    for places in torch.split(torch.nonzero(statistics.count > 1).flatten(), classes_at_once(d)):
        mean = statistics.sum[places] / statistics.count[places, None]
        scatter = unpack(statistics.outer[places], d) - statistics.sum[places, :, None] * mean[:, None]
        eigenvalues[places] = _lowest(scatter, slack[places])
    return eigenvalues


def _lowest(scatter: Tensor, slack: Tensor) -> Tensor:
    eigenvalues = torch.zeros_like(slack)
    _, failed = torch.linalg.cholesky_ex(scatter + slack[:, None, None] * torch.eye(scatter.shape[-1]).to(scatter))
    overflow = ~torch.isfinite(scatter).flatten(1).all(1)  # squared sums exceed float64
    eigenvalues[overflow] = -torch.inf
    for i in torch.nonzero((failed > 0) & ~overflow).flatten().tolist():
        eigenvalues[i] = torch.linalg.eigvalsh(scatter[i])[0]
    return eigenvalues
