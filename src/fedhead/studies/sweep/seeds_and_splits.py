"""Seeds and splits of a cell: the defaults, a number of them, or a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import AtLeast, AtMost

MOST_RUNS = 10_000  # per cell: all runs are planned before the first starts
Count = Annotated[int, AtLeast(1), AtMost(MOST_RUNS)]


def drawn_seeds(defaults: Sequence[int], requested: int | Sequence[int] | None) -> list[int]:
    """Return the default seeds, the requested number of them (continued if necessary), or the requested list.

    >>> drawn_seeds([7, 8, 10], 4)
    [7, 8, 10, 11]
    """
    if requested is None:
        return list(defaults)
    if not isinstance(requested, int):
        return list(requested)
    check("--seeds", requested, Count)
    return [*defaults, *range(max(defaults) + 1, max(defaults) + 1 + requested)][:requested]


def drawn_splits(requested: int | Sequence[int] | None) -> list[int | None]:
    """Return the partition seeds; None stands for the table's default."""
    if requested is None:
        return [None]
    if not isinstance(requested, int):
        return list(requested)
    check("--splits", requested, Count)
    return list(range(requested))
