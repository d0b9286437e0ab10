"""Seeds and splits of a cell: its own, so many of them, or those asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import AtLeast, AtMost

MOST_RUNS = 10_000  # of a cell: all are listed before the first begins
Count = Annotated[int, AtLeast(1), AtMost(MOST_RUNS)]


def drawn_seeds(own: Sequence[int], asked: int | Sequence[int] | None) -> list[int]:
    """Return the seeds: the paper's own, so many of them (then those that follow), or those asked for.

    >>> drawn_seeds([7, 8, 10], 4)
    [7, 8, 10, 11]
    """
    if asked is None:
        return list(own)
    if not isinstance(asked, int):
        return list(asked)
    check("--seeds", asked, Count)
    return [*own, *range(max(own) + 1, max(own) + 1 + asked)][:asked]


def drawn_splits(asked: int | Sequence[int] | None) -> list[int | None]:
    """Return the partitions' seeds; None means the table's own."""
    if asked is None:
        return [None]
    if not isinstance(asked, int):
        return list(asked)
    check("--splits", asked, Count)
    return list(range(asked))
