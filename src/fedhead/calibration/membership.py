"""Adding clients to merged statistics and removing them, tracked by fingerprints.

The `members` of a total are hashes of the added statistics, not of any data. They prevent adding or removing a client
twice. Removal subtracts, so the result equals a total without the client up to rounding: about 1e-16 of the largest
total so far.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedhead.calibration import statistics_check
from fedhead.calibration.statistics import Statistics, check_same_model, merge
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.digest import digest_of, digest_text
from fedhead.core.tree.tree import Tree


def add(total: Statistics, part: Statistics) -> Statistics:
    """Add a client's statistics to a total.

    Args:
        total: Statistics of one client or of several.
        part: Statistics of the clients that join.

    Returns:
        Merged statistics, with the fingerprint of each client in `members`.

    Raises:
        BadInput: If a client is in both, or the two are of different models or transforms.

    >>> from fedhead.calibration.statistics import from_features
    >>> a, b = (from_features(torch.full((2, 1), v), torch.tensor([0, 1]), 2) for v in (1.0, 2.0))
    >>> both = add(a, b)
    >>> len(both.members), remove(both, b).count.tolist()
    (2, [1.0, 1.0])
    """
    return merge([with_members(total), with_members(part)])


def remove(total: Statistics, part: Statistics) -> Statistics:
    """Remove a client's statistics from a total.

    Args:
        total: Statistics of several clients, as `add` returns them.
        part: Statistics of the clients that leave, exactly as they were added.

    Returns:
        Statistics of the remaining clients.

    Raises:
        BadInput: If they are not in the total, would cause negative counts, or are of another model or transform.
    """
    total, part = with_members(total), with_members(part)
    if strangers := part.members - total.members:
        check_same_model(total, part)
        raise BadInput(
            f"the statistics {min(strangers)} are not in the total: they were never added, were removed before, or "
            "were recomputed since; give the file that was added"
        )
    return replace(subtract(total, part), members=total.members - part.members)


def subtract(total: Statistics, part: Statistics) -> Statistics:
    """Subtract statistics from a total, regardless of members.

    Args:
        total: Statistics of several clients.
        part: Statistics of some of these clients.

    Raises:
        BadInput: If counts would become negative, or the two are of different models or transforms.
    """
    check_same_model(total, part)
    count = total.count - part.count
    for c in torch.nonzero(count < 0).flatten().tolist():
        raise BadInput(
            f"removing {float(part.count[c]):g} samples of class {c} from {float(total.count[c]):g} would leave "
            "negative counts: these statistics are not part of the total"
        )
    present = (count > 0)[:, None]
    outer = total.outer - part.outer
    if outer.dim() == 2:
        outer = torch.where(present, outer, 0.0)  # remove rounding errors of classes without samples
    elif not bool(present.any()):
        outer = torch.zeros_like(outer)
    return replace(total, count=count, sum=torch.where(present, total.sum - part.sum, 0.0), outer=outer)


def with_members(statistics: Statistics) -> Statistics:
    """Return statistics with `members`; without any, they count as one client's."""
    if not isinstance(statistics, Statistics):
        raise BadInput(f"{type(statistics).__name__} is no statistics: give what fedhead.statistics_of returns")
    statistics_check.check(statistics, "the statistics", full=False)
    if statistics.members:
        return statistics
    return replace(statistics, members=fingerprint(statistics.tree(), statistics.extractor, statistics.transform))


def fingerprint(sums: Tree, extractor: str = "", transform: str = "") -> frozenset[str]:
    """Return the fingerprint of one client's sums; empty without samples, so such a client may be added twice."""
    if not bool(sums["count"].any()):
        return frozenset()
    return frozenset([digest_text(f"{extractor} {transform} {digest_of(sums, 16)}", 16)])
