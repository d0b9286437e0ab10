"""Reconstruction of the table cells to which rows of results.csv belong."""

from __future__ import annotations

import re
from typing import Any

from fedhead.core.system.errors import BadInput
from fedhead.core.system.yaml_text import read_yaml
from fedhead.papers.tables.paper_tables import PaperCell
from fedhead.papers.tables.results import Measurement, digest


def changed_cell(cell: PaperCell, row: Measurement) -> PaperCell | None:
    """Return a cell with the overrides of a row.

    Args:
        cell: Unchanged cell with the row's name.
        row: Recorded row.

    Returns:
        The cell; None if its recipe has changed since the measurement, or its code is missing.
    """
    changes: dict[str, Any] = {}
    try:
        for text in _settings(row.overrides):
            key, _, value = text.partition("=")
            if key == "stage":  # a variant with another stage
                cell, changes = cell.override(changes).end_in(None if value == "none" else value), {}
            else:
                changes[key] = read_yaml(value, key)
        changed = cell.override(changes)
        return changed if digest(changed) == row.digest else None
    except BadInput:  # a removed key
        return None


def _settings(overrides: str) -> list[str]:
    """Split the overrides of a row into `key=value` texts; a value may contain `key=value` texts in brackets."""
    settings: list[str] = []
    for text in re.split(r" (?=[\w.]+=)", overrides) if overrides else []:
        last = re.sub(r'"[^"]*"', "", settings[-1]) if settings else ""  # ignore quoted brackets
        if len(re.findall(r"[(\[{]", last)) > len(re.findall(r"[)\]}]", last)):
            settings[-1] += f" {text}"
        else:
            settings.append(text)
    return settings
