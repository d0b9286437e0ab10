"""Cells of paper tables in one line: those that a training is for, and the seeds that are added to theirs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedhead.papers.tables.paper_tables import PaperCell
from fedhead.studies.sweep.seeds_and_splits import drawn_seeds

_MOST = 3  # so many of an axis' choices are named


def name_cells(cells: Iterable[tuple[str, PaperCell]]) -> str:
    """Return what cells are called, with what they have in common written once.

    Args:
        cells: Each with the name of its table.

    Returns:
        A text such as `ccvr/table2 cifar10-0.5 fedavg before/ccvr`: per table the cells' choices by axis, and what
        was changed of them.
    """
    by_table: dict[str, list[PaperCell]] = {}
    for table, cell in cells:
        by_table.setdefault(table, []).append(cell)
    return "; ".join(" ".join([table, *_words(found)]) for table, found in by_table.items())


def _words(cells: Sequence[PaperCell]) -> list[str]:
    axes = dict.fromkeys(axis for cell in cells for axis in cell.labels)
    choices = [dict.fromkeys(cell.labels[axis] for cell in cells) for axis in axes]
    changes = dict.fromkeys(" ".join(cell.overrides) for cell in cells if cell.overrides)
    return [_joined(list(found)) for found in [*choices, *([changes] if changes else [])]]


def _joined(texts: Sequence[str]) -> str:
    more = f"/… {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return "/".join(texts[:_MOST]) + more


def added_seeds(cells: Sequence[PaperCell], asked: int | Sequence[int] | None) -> str | None:
    """Name the seeds that are drawn beyond the papers' own at full scale; None: there are none."""
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
