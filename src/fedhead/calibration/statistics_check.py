"""Checks of class statistics: what no features could have is refused before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedhead.calibration.statistics import Statistics, merge
from fedhead.calibration.symmetric import classes_at_once, diagonal_places, unpack
from fedhead.core.system.errors import BadInput

_NEGATIVE = 1e-7  # an eigenvalue below this share of the largest one is not a rounding error
_MOST = 2.0**53  # samples: beyond it float64 does not hold every whole number
_LARGEST = 1e18  # of a feature: beyond it squares, and heads that are made of them, overflow in single precision


def check(statistics: Statistics, source: str, full: bool = True, samples: float = math.inf) -> Statistics:
    """Check that statistics could have been computed from features.

    Args:
        statistics: Statistics to check.
        source: Where they come from, for error messages.
        full: Whether to check that full covariances have no negative eigenvalues, which is costly; without it only
            diagonals are checked.
        samples: The most samples that there may be in all classes together.

    Returns:
        The same statistics.

    Raises:
        BadInput: With the source and the reason.
    """
    for name, t in statistics.tree().items():
        # a finite sum has finite terms, and takes a tenth of the time of looking at each
        if not bool(torch.isfinite(t.sum())) and not bool(torch.isfinite(t).all()):
            raise BadInput(f"{source}: {name!r} is not finite; leave this client out, its model has diverged")
    of_classes = [statistics.outer] if statistics.outer.dim() == 2 else []  # those that have one row per class
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
    """Return the size of the features: the root of their mean squared norm, or that of their class means.

    Args:
        statistics: Statistics of any kind.

    Returns:
        The size; 0 without samples, infinite if it is too large for float64.
    """
    squares = _squares(statistics).sum()
    return math.sqrt(max(float(squares / statistics.count.sum().clamp_min(1)), 0.0))


def merge_checked(sources: Sequence[str], part: Callable[[int], Statistics]) -> Statistics:
    """Merge statistics, and name the source of those that no features could have.

    Args:
        sources: Where each part comes from, for error messages.
        part: Returns the part of a number; parts are large, so that one at a time is made.

    Raises:
        BadInput: With the source and the reason.
    """
    merged = merge((check(part(i), source, full=False) for i, source in enumerate(sources)), sources)
    try:
        return check(merged, "the merged statistics")
    except BadInput:
        for i, source in enumerate(sources):  # whose fault is it?
            check(part(i), source)
        raise


def check_counts(source: str, count: Tensor, samples: float, *sums: Tensor) -> None:
    """Check that class counts could be those of a client.

    Args:
        source: Where they come from, for error messages.
        count: Samples per class, [C].
        samples: All of the client's samples.
        *sums: Sums per class, [C, ...].

    Raises:
        BadInput: For counts that are negative or no whole numbers, more counts than samples, or sums without counts.
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
    """Return the sums of squares of each class, [C, d]; pooled ones are one row, and means have those of the means."""
    if statistics.kind == "means":
        return statistics.sum * statistics.mean()
    if statistics.kind == "pooled":
        return statistics.outer[diagonal_places(statistics.features, statistics.outer.device)][None]
    return statistics.diagonal().outer


def _variances(statistics: Statistics) -> tuple[Tensor, Tensor]:
    """Return the diagonals of the scatters, and what of them may be a rounding error: of each class, [C, d] and [C].

    Pooled statistics have one row, the scatter within all classes; means have nothing that could be wrong.
    """
    squares, between = _squares(statistics), statistics.sum * statistics.mean()
    if statistics.kind == "pooled":
        between = between.sum(0)
    return squares - between, _NEGATIVE * squares.abs().amax(1).clamp_min(1e-300)


def _indefinite(statistics: Statistics, slack: Tensor) -> Tensor:
    """Return the lowest eigenvalue of each scatter that is not positive semi-definite, 0 of the others.

    A Cholesky decomposition, which tells them apart, takes a fraction of the time of the eigenvalues.
    """
    d = statistics.features
    if statistics.kind == "pooled":
        return _lowest(statistics.within()[None], slack)
    found = torch.zeros_like(slack)
    for places in torch.split(torch.nonzero(statistics.count > 1).flatten(), classes_at_once(d)):
        mean = statistics.sum[places] / statistics.count[places, None]
        scatter = unpack(statistics.outer[places], d) - statistics.sum[places, :, None] * mean[:, None]
        found[places] = _lowest(scatter, slack[places])
    return found


def _lowest(scatter: Tensor, slack: Tensor) -> Tensor:
    found = torch.zeros_like(slack)
    _, failed = torch.linalg.cholesky_ex(scatter + slack[:, None, None] * torch.eye(scatter.shape[-1]).to(scatter))
    beyond = ~torch.isfinite(scatter).flatten(1).all(1)  # the squares of its sums are too large for float64
    found[beyond] = -torch.inf
    for i in torch.nonzero((failed > 0) & ~beyond).flatten().tolist():
        found[i] = torch.linalg.eigvalsh(scatter[i])[0]
    return found
