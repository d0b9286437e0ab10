"""Rows of results that nothing was trained for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.reproduce import repetitions
from fedhead.papers.tables.results import Measurement, Results
from fedhead.papers.tables.run_cells import Repetition


def measured(w: Repetition, value: float, **others: Any) -> Measurement:
    """The row of a repetition with a value; others of its columns as given."""
    given = {
        "table": w.table, "cell": w.cell.name, "overrides": " ".join(w.cell.overrides), "digest": w.digest,
        "scale": w.scale, "split": w.split, "seed": w.recipe.seed, "metric": w.cell.metric, "value": value,
        "stage": w.cell.stage or "none", "accuracy": value, "accuracy_mean": None, "personal": None,
        "client_deviation": None, "bytes_up": 1, "bytes_down": 1, "training_seconds": 60.0, "stage_seconds": 1.0,
        "together": 1, "executor": "stack", "precision": "bf16", "device": "a GPU", "version": "0", "commit": "",
        "date": "2026-01-01",
    }  # fmt: skip
    return Measurement(**{**given, **others})


def enter(
    folder: Path,
    table: str,
    values: Mapping[str, Mapping[int, float]],
    overrides: Mapping[str, Any] | None = None,
    **others: Any,
) -> None:
    """Enter values of a table's cells by split, with the first seed."""
    results, cells = Results(folder), {cell.name: cell for cell in tables.load(table).cells()}
    for name, by_split in values.items():
        cell = cells[name].override(overrides or {})
        for split, value in by_split.items():
            (w,) = repetitions(table, cell, "full", 1, [split])
            results.add(measured(w, value, **others))
