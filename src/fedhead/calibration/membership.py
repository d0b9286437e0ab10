"""Statistics that clients join and leave: who is in a total, by the fingerprints of their statistics.

A total's `members` are hashes of the statistics that were added up, not of any data. They keep anybody from being added
or removed twice. What is removed is subtracted, so that the total equals one that the client was never in, up to
rounding: about 1e-16 of the largest total that there was.
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
        part: Statistics of those who join.

    Returns:
        The statistics of all of them, with each one's fingerprint in `members`.

    Raises:
        BadInput: If somebody is in both, or the two are of different models or transforms.

    >>> from fedhead.calibration.statistics import from_features
    >>> a, b = (from_features(torch.full((2, 1), v), torch.tensor([0, 1]), 2) for v in (1.0, 2.0))
    >>> both = add(a, b)
    >>> len(both.members), remove(both, b).count.tolist()
    (2, [1.0, 1.0])
    """
    return merge([with_members(total), with_members(part)])


def remove(total: Statistics, part: Statistics) -> Statistics:
    """Remove a client's statistics from a total, as if it had never been in.

    Args:
        total: Statistics of several clients, as `add` returns them.
        part: Statistics of those who leave, as they were added.

    Returns:
        The statistics of those who stay.

    Raises:
        BadInput: If they are not in the total, would leave negative counts, or are of another model or transform.
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
    """Return a total without a part of it, whoever is in either.

    Args:
        total: Statistics of several clients.
        part: Statistics of some of them.

    Raises:
        BadInput: If that would leave negative counts, or the two are of different models or transforms.
    """
    check_same_model(total, part)
    count = total.count - part.count
    for c in torch.nonzero(count < 0).flatten().tolist():
        raise BadInput(
            f"removing {float(part.count[c]):g} samples of class {c} from {float(total.count[c]):g} would leave "
            "negative counts: these statistics are not part of the total"
        )
    there = (count > 0)[:, None]
    outer = total.outer - part.outer
    if outer.dim() == 2:
        outer = torch.where(there, outer, 0.0)  # what is left of a class without samples is a rounding error
    elif not bool(there.any()):
        outer = torch.zeros_like(outer)
    return replace(total, count=count, sum=torch.where(there, total.sum - part.sum, 0.0), outer=outer)


def with_members(statistics: Statistics) -> Statistics:
    """Return statistics that know who is in them: those that do not know count as one client's."""
    if not isinstance(statistics, Statistics):
        raise BadInput(f"{type(statistics).__name__} is no statistics: give what fedhead.statistics_of returns")
    statistics_check.check(statistics, "the statistics", full=False)
    if statistics.members:
        return statistics
    return replace(statistics, members=fingerprint(statistics.tree(), statistics.extractor, statistics.transform))


def fingerprint(sums: Tree, extractor: str = "", transform: str = "") -> frozenset[str]:
    """Return the fingerprint of one client's sums; none for a client without samples, which may come twice."""
    if not bool(sums["count"].any()):
        return frozenset()
    return frozenset([digest_text(f"{extractor} {transform} {digest_of(sums, 16)}", 16)])
