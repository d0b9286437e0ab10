"""Cells of recorded rows."""

from __future__ import annotations

import re
from typing import Any

from fedhead.core.system.errors import BadInput
from fedhead.papers.tables.paper_tables import PaperCell
from fedhead.papers.tables.results import Measurement, digest
from fedhead.recipes.yaml_text import read_yaml


def changed_cell(cell: PaperCell, row: Measurement) -> PaperCell | None:
    """Return a cell with the overrides that a row names.

    Args:
        cell: The table's own cell, of the row's name.
        row: What was measured.

    Returns:
        The cell; None if the row was measured with other settings than the cell has now, or with code that is not here.
    """
    changes: dict[str, Any] = {}
    try:
        for text in _settings(row.overrides):
            key, _, value = text.partition("=")
            if key == "stage":  # as a variant writes that it ends in another one
                cell, changes = cell.override(changes).end_in(None if value == "none" else value), {}
            else:
                changes[key] = read_yaml(value, key)
        found = cell.override(changes)
        return found if digest(found) == row.digest else None
    except BadInput:  # a setting that there is no more
        return None


def _settings(overrides: str) -> list[str]:
    """Return the settings of a row, `key=value` each; a value may hold others in brackets, as a callback does."""
    settings: list[str] = []
    for text in re.split(r" (?=[\w.]+=)", overrides) if overrides else []:
        last = re.sub(r'"[^"]*"', "", settings[-1]) if settings else ""  # a bracket in quotes is a character
        if len(re.findall(r"[(\[{]", last)) > len(re.findall(r"[)\]}]", last)):
            settings[-1] += f" {text}"
        else:
            settings.append(text)
    return settings
