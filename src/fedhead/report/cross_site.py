"""Cross-site matrix of a deployed run: every site's model on every site's test samples."""

from __future__ import annotations

from pathlib import Path

from fedhead.report.table import Cell, Table, number
from fedhead.runs.run_folder_schema import CROSS_SITE, GLOBAL_MODEL, read_object


def matrix(folder: Path) -> list[Table]:
    """Return the tables of accuracy, loss and metrics of a run folder; empty if it has no matrix.

    A row is a model, a column the test samples of a site.
    """
    content = read_object(folder / CROSS_SITE, "delete it") or {"cells": [], "sites": []}
    cells = {(cell["model"], cell["test"]): cell for cell in content["cells"]}
    names = dict.fromkeys(name for cell in content["cells"] for name in cell)
    sites = content["sites"]
    models = [name for name in (GLOBAL_MODEL, *sites) if any(model == name for model, _ in cells)]
    tables = []
    for name in [name for name in names if name not in ("model", "test", "samples")]:
        rows: list[list[Cell | str]] = [
            [model, *(number(cells.get((model, site), {}).get(name)) for site in sites)] for model in models
        ]
        tables.append(Table(f"{name}, model by test samples", ["model", *sites], rows))
    return tables
