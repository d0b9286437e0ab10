"""The table of a sweep: one row per cell, the means and deviations of its finished runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedhead.core.system.atomic_file import atomic
from fedhead.metrics.averages import mean_and_deviation
from fedhead.studies.sweep.sweep_runs import SweepCell, result_of

TABLE_CSV, TABLE_JSON = "table.csv", "table.json"
_SUMMARY = ("mean", "deviation")


@dataclass(frozen=True)
class SweepRow:
    """A cell's results."""

    cell: str
    choices: Mapping[str, str]
    values: Mapping[str, Sequence[float | None]]  # by what was measured, one per finished run
    finished: int
    runs: int

    def mean_and_deviation(self, column: str) -> tuple[float | None, float | None]:
        """Return the mean and the sample standard deviation over the finished runs that have the value."""
        return mean_and_deviation(self.values.get(column, ()))


@dataclass(frozen=True)
class SweepResult:
    """Results of a sweep so far.

    Attributes:
        title: What the sweep shows.
        folder: The sweep's folder.
        axes: The axes, in the order of the columns.
        rows: One per cell.
        failures: Why runs failed in this call, by cell and seed.
        left: How many runs of this call were not begun, for lack of time.
    """

    title: str
    folder: Path
    axes: Sequence[str]
    rows: Sequence[SweepRow]
    failures: Mapping[str, str]
    left: int

    @property
    def columns(self) -> list[str]:
        """The columns: accuracy, then what some run has besides."""
        found = dict.fromkeys(column for row in self.rows for column, values in row.values.items() if _any(values))
        return list(dict.fromkeys(["accuracy", *found]))


def _any(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def collect(
    title: str, folder: Path, axes: Sequence[str], cells: Sequence[SweepCell], failures: Mapping[str, str], left: int
) -> SweepResult:
    """Return a sweep's table from its run folders, whichever process or shard has filled them."""
    rows = []
    for cell in cells:
        results = [found for path in cell.runs if (found := result_of(folder / path)) is not None]
        measured = [_values(result) for result in results]
        columns = dict.fromkeys(column for values in measured for column in values)
        values = {column: [one.get(column) for one in measured] for column in columns}
        rows.append(SweepRow(cell.name, cell.choices, values, len(results), len(cell.runs)))
    return SweepResult(title, folder, axes, rows, failures, left)


def _values(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of a run's results that the table has, stages last."""
    values = {"accuracy": result.get("accuracy"), "personal": result.get("personal"), **(result.get("metrics") or {})}
    for stage, found in (result.get("stages") or {}).items():
        values |= {f"{stage} {word}": found.get(word) for word in ("accuracy", "personal")}
    return values


def write(result: SweepResult) -> None:
    """Write table.json, in full, and table.csv, rounded for reading."""
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
        pd.DataFrame(lines).round(4).to_csv(draft, index=False)
