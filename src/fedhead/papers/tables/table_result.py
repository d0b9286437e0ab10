"""Results of a table, with the published ones."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedhead.core.system.atomic_file import atomic
from fedhead.core.tree.digest import digest_text
from fedhead.metrics.averages import mean_and_deviation
from fedhead.papers.tables.paper_tables import PaperCell
from fedhead.papers.tables.published import published
from fedhead.papers.tables.results import Measurement, digest
from fedhead.report import table

_LONGEST = 100  # maximum number of characters for overrides in a file name


@dataclass(frozen=True)
class CellResult:
    """Result of one cell, ours and the paper's, in per cent."""

    cell: str
    digest: str  # digest of the cell's recipe
    choices: Mapping[str, str]
    overrides: Sequence[str]
    metric: str
    values: Sequence[float | None]  # our values, one per split and seed; None: missing
    mean: float | None
    deviation: float | None  # over splits and seeds, or over clients, as in the paper; None for a single value
    published: float | None
    published_deviation: float | None
    difference: float | None  # ours minus the paper's; None if not comparable
    comparable: bool = True  # whether the published value applies, see `has_published_settings`
    seeds: Sequence[int] = ()  # seeds of the values
    splits: Sequence[int] = ()


@dataclass(frozen=True)
class TableResult:
    """Results of a table so far."""

    table: str
    title: str
    scale: str
    seeds: Sequence[int]  # seeds and splits of all cells; a cell may have fewer
    splits: Sequence[int]
    comparable: bool
    axes: Sequence[str]
    cells: Sequence[CellResult]
    left: int = 0  # runs that were not started or failed
    failures: Mapping[str, str] = field(default_factory=dict)  # reasons by cell and seed
    file: str = "table"  # name of its files, without .csv and .json

    def note(self) -> str:
        """Return the caveats of the comparison."""
        done = [cell for cell in self.cells if cell.values]
        drawn = ", ".join(
            [_count([len(cell.seeds) for cell in done], "seed"), _count([len(cell.splits) for cell in done], "split")]
        )
        changed = list(dict.fromkeys(text for cell in self.cells for text in cell.overrides))
        settings = "the papers' settings" if not changed else f"the papers' settings but for {', '.join(changed)}"
        left = f"; {self.left} runs are left" if self.left else ""
        if self.comparable:
            other = "; results of settings that no variant has are NOT comparable with the published ones"
            return f"{drawn}; {settings}{'' if all(cell.comparable for cell in self.cells) else other}{left}"
        return (
            f"scale small, {drawn}: other data, models or rounds than the paper's, so the results are NOT comparable "
            f"with the published ones{left}"
        )


def _count(numbers: Sequence[int], noun: str) -> str:
    """Format the numbers of seeds or splits of cells.

    >>> _count([3, 3], "seed"), _count([1, 3], "seed"), _count([], "split")
    ('3 seeds', '1 to 3 seeds per cell', '0 splits')
    """
    least, most = min(numbers, default=0), max(numbers, default=0)
    number = f"{least}" if least == most else f"{least} to {most}"
    return f"{number} {noun}{'s' if most != 1 else ''}{' per cell' if least != most else ''}"


def cell_result(cell: PaperCell, measured: Sequence[Measurement], comparable: bool = True) -> CellResult:
    """Compute a cell's result from its rows.

    A deviation over clients is averaged over runs.

    Args:
        cell: Cell.
        measured: Rows of the cell.
        comparable: Whether the published value applies to its recipe.
    """
    values = [row.value for row in measured]
    mean, deviation = mean_and_deviation(values)
    if cell.deviation == "clients":
        deviation, _ = mean_and_deviation(row.client_deviation for row in measured)
    expected, expected_deviation = published(cell) or (None, None)
    return CellResult(
        cell=cell.name,
        digest=digest(cell),
        choices=cell.labels,
        overrides=cell.overrides,
        metric=cell.metric,
        values=values,
        mean=mean,
        deviation=deviation,
        published=expected,
        published_deviation=expected_deviation,
        difference=difference(mean, expected, comparable),
        comparable=comparable,
        seeds=sorted({row.seed for row in measured}),
        splits=sorted({row.split for row in measured}),
    )


def difference(ours: float | None, expected: float | None, comparable: bool) -> float | None:
    """Return our value minus the published one; None if one is missing or they are not comparable."""
    return ours - expected if ours is not None and expected is not None and comparable else None


def file_name(variants: Sequence[str], overrides: Mapping[str, Any]) -> str:
    """Return the name of a table's files without suffix, which includes variants and overrides.

    >>> [file_name([], {}), file_name(["public-code"], {"method.mu": 0.5})]
    ['table', 'table-public-code+method.mu=0.5']
    """
    changes = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in overrides.items()]
    text = "+".join([*variants, *changes])
    name = re.sub(r"[^A-Za-z0-9.=+_-]+", "-", text)[:_LONGEST].strip("-")
    code = "" if name == text else f"-{digest_text(text, 4)}"
    return f"table-{name}{code}" if text else "table"


def json_text(result: TableResult) -> str:
    """Serialize the table to JSON with all values."""
    return json.dumps(asdict(result) | {"note": result.note()}, indent=2) + "\n"


def write(out: Path, result: TableResult) -> None:
    """Write the table's .json file with all values and its .csv file with rounded ones."""
    out.mkdir(parents=True, exist_ok=True)
    with atomic(out / f"{result.file}.json") as draft:
        draft.write_text(json_text(result), encoding="utf-8")
    columns = ["overrides", "metric", "ours", "deviation", "runs", "published", "published_deviation", "difference"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*result.axes, *columns, "scale"])
    for cell in result.cells:
        ours = [cell.mean, cell.deviation, sum(v is not None for v in cell.values)]
        row = [cell.metric, *ours, cell.published, cell.published_deviation, cell.difference]
        cut = [round(v, 4) if isinstance(v, float) else v for v in row]
        writer.writerow([*(cell.choices[axis] for axis in result.axes), " ".join(cell.overrides), *cut, result.scale])
    with atomic(out / f"{result.file}.csv") as draft:
        draft.write_text(text.getvalue(), encoding="utf-8")


def plus_minus(mean: float | None, deviation: float | None) -> str:
    """Format a mean and its deviation; numbers of bytes as integers."""
    return f"{mean:,.0f}" if mean is not None and mean >= 1000 else table.plus_minus(mean, deviation)
