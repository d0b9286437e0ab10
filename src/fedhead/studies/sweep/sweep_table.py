"""Table of a sweep: one row per cell with means and deviations of its finished runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.spreadsheet import without_formulas
from fedhead.metrics.averages import mean_and_deviation
from fedhead.studies.run_job import result_of
from fedhead.studies.sweep.sweep_runs import SweepCell

TABLE_CSV, TABLE_JSON = "table.csv", "table.json"
_SUMMARY = ("mean", "deviation")


@dataclass(frozen=True)
class SweepRow:
    """Results of a cell."""

    cell: str
    choices: Mapping[str, str]
    values: Mapping[str, Sequence[float | None]]  # by column, one per finished run
    finished: int
    runs: int

    def mean_and_deviation(self, column: str) -> tuple[float | None, float | None]:
        """Return the mean and the sample standard deviation over the finished runs that have the value."""
        return mean_and_deviation(self.values.get(column, ()))


@dataclass(frozen=True)
class SweepResult:
    """Results of a sweep so far.

    Attributes:
        title: Title of the sweep.
        folder: Folder of the sweep.
        axes: Axes, in the order of the columns.
        rows: Rows, one per cell.
        failures: Reasons of runs that failed in this call, by cell and seed.
        left: Number of runs that were not started in the time budget.
    """

    title: str
    folder: Path
    axes: Sequence[str]
    rows: Sequence[SweepRow]
    failures: Mapping[str, str]
    left: int

    @property
    def columns(self) -> list[str]:
        """Columns: accuracy, then every other column with a value."""
        columns = [(column, values) for row in self.rows for column, values in row.values.items()]
        return list(dict.fromkeys(["accuracy", *(column for column, values in columns if {*values} - {None})]))


def collect(
    title: str, folder: Path, axes: Sequence[str], cells: Sequence[SweepCell], failures: Mapping[str, str], left: int
) -> SweepResult:
    """Return a sweep's table from its run folders, including those of other processes and shards."""
    rows = []
    for cell in cells:
        results = [result for path in cell.runs if (result := result_of(folder / path)) is not None]
        measured = [_values(result) for result in results]
        columns = dict.fromkeys(column for values in measured for column in values)
        values = {column: [row.get(column) for row in measured] for column in columns}
        rows.append(SweepRow(cell.name, cell.choices, values, len(results), len(cell.runs)))
    return SweepResult(title, folder, axes, rows, failures, left)


def _values(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the values of a run's results by table column, stages last."""
    values = {"accuracy": result.get("accuracy"), "personal": result.get("personal"), **(result.get("metrics") or {})}
    for stage, row in (result.get("stages") or {}).items():
        values |= {f"{stage} {name}": row.get(name) for name in ("accuracy", "personal")}
    return values


def write(result: SweepResult) -> None:
    """Write table.json with all values and table.csv with rounded ones."""
    import pandas as pd  # `import fedhead` is quicker without

    rows = [
        {
            "cell": row.cell,
            "choices": dict(row.choices),
            "finished": row.finished,
            "runs": row.runs,
            "results": {
                column: {"values": list(values), **dict(zip(_SUMMARY, row.mean_and_deviation(column), strict=True))}
                for column, values in row.values.items()
            },
        }
        for row in result.rows
    ]
    whole = {"title": result.title, "axes": list(result.axes), "cells": rows, "failures": dict(result.failures)}
    with atomic(result.folder / TABLE_JSON) as draft:
        draft.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    lines = []
    for row in result.rows:
        line: dict[str, Any] = {**row.choices, "finished": row.finished, "runs": row.runs}
        for column in result.columns:
            line[column], line[f"{column} deviation"] = row.mean_and_deviation(column)
        lines.append(line)
    with atomic(result.folder / TABLE_CSV) as draft:
        without_formulas(pd.DataFrame(lines).round(4)).to_csv(draft, index=False)
