"""Cells of paper tables in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedhead.papers.tables.paper_tables import PaperCell

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
