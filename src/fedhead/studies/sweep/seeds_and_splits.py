"""Which seeds and splits are drawn for a cell: the paper's own, so many of them, or those asked for."""

from __future__ import annotations

from collections.abc import Sequence

from fedhead.core.system.errors import BadInput
from fedhead.studies.sweep.tables import Cell

MOST_RUNS = 10_000  # of a cell: all are listed before the first begins


def drawn_seeds(own: Sequence[int], asked: int | Sequence[int] | None) -> list[int]:
    """Return the seeds: the paper's own, so many of them (then those that follow), or those asked for.

    >>> drawn_seeds([7, 8, 10], 4)
    [7, 8, 10, 11]
    """
    if asked is None:
        return list(own)
    if not isinstance(asked, int):
        return list(asked)
    _check_number("--seeds", asked)
    return [*own, *range(max(own) + 1, max(own) + 1 + asked)][:asked]


def added_seeds(cells: Sequence[Cell], asked: int | Sequence[int] | None) -> str | None:
    """Say which seeds are drawn beyond the tables' own at full scale, which are the papers'; None: there are none."""
    if not isinstance(asked, int):
        return None
    own = dict.fromkeys(tuple(cell.seeds) for cell in cells if cell.scale == "full" and len(cell.seeds) < asked)
    if not own:
        return None
    found = (f"{_listed(drawn_seeds(seeds, asked)[len(seeds) :])} after {_listed(seeds)}" for seeds in own)
    return f"--seeds {asked} is more than a table has; the seeds that follow are added to its own: {', '.join(found)}"


def _listed(seeds: Sequence[int]) -> str:
    """Write numbers, those in a row as a range.

    >>> _listed([7, 8, 10]), _listed([11, 12, 13])
    ('7 8 10', '11-13')
    """
    in_a_row = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if in_a_row else " ".join(map(str, seeds))


def drawn_splits(asked: int | Sequence[int] | None) -> list[int | None]:
    """Return the partitions' seeds; None means the table's own."""
    if asked is None:
        return [None]
    if not isinstance(asked, int):
        return list(asked)
    _check_number("--splits", asked)
    return list(range(asked))


def _check_number(option: str, asked: int) -> None:
    if asked < 1:
        raise BadInput(f"{option} {asked}: at least 1 is needed")
    if asked > MOST_RUNS:
        raise BadInput(f"{option} {asked}: at most {MOST_RUNS} can be listed")
