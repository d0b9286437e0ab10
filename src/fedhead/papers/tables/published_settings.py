"""Whether the published value of a cell is for its settings: those of the table itself, or of one of its variants.

A variant is another reading of the paper, also of its data, so its results are compared with the published ones; those
of any other settings are not.
"""

from __future__ import annotations

from fedhead.papers.tables.paper_tables import PaperCell, PaperTable
from fedhead.papers.tables.results import digest


def has_published_settings(table: PaperTable, cell: PaperCell) -> bool:
    """Return whether a cell has the settings of its table or of a variant, whether by its name or as key=value.

    Args:
        table: The cell's table.
        cell: One of its cells at full scale, perhaps changed.

    Raises:
        BadInput: The cell can't be built.
    """
    if not cell.overrides:
        return True
    own, mine = table.cell(cell.choices), digest(cell)
    variants = (table.as_in(own, name) for name in table.variants())
    return digest(own) == mine or any(variant is not None and digest(variant) == mine for variant in variants)
