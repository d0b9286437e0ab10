"""Results page of a folder: our results and the published ones, cell by cell, with a figure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.core.system.special_files import read_text, refuse_special
from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.paper_tables import PaperCell, PaperTable
from fedhead.papers.tables.published import has_published_settings, published, published_place, published_rows
from fedhead.papers.tables.recorded_cells import changed_cell
from fedhead.papers.tables.results import Measurement, Results, digest
from fedhead.papers.tables.table_result import CellResult, cell_result, plus_minus
from fedhead.report.figures import plots
from fedhead.report.table import mean_std
from fedhead.studies.training import training_key

PAGE, PICTURE, NOTES = "README.md", "figure.svg", "notes.md"
CLOSE = 2.0  # largest difference, in percentage points, that counts as close
_BEGIN = re.compile(rb"# Results\r?\n\r?\n\d+ of the papers' \d+ published values are measured")  # start of every page
_MOST = 5  # maximum number of names in one line


@dataclass(frozen=True)
class Line:
    """Measured cell."""

    table: str
    cell: PaperCell
    result: CellResult
    rows: Sequence[Measurement]
    gains: Sequence[float]  # gains over the same cell before its stage, paired by split and seed
    published_gain: float | None

    @property
    def beyond(self) -> bool:
        """True if our mean differs from the paper's by more than twice the published deviation, or 2 points."""
        f = self.result
        most = CLOSE if f.published_deviation is None else 2 * f.published_deviation
        return f.difference is not None and abs(f.difference) > most

    @property
    def close(self) -> bool:
        """True if the difference is at most 2 points and at most twice its standard error, which must be known."""
        error = self._standard_error()
        return self.within_points and error is not None and abs(self.result.difference or 0.0) <= 2 * error

    def _standard_error(self) -> float | None:
        """Return the standard error of the difference; if only one deviation is known, it is used for both means."""
        if self.cell.deviation != "seeds":
            return None
        ours, theirs = self.result.deviation, self.result.published_deviation
        known = [deviation for deviation in (ours, theirs) if deviation is not None]
        if not known:
            return None
        ours, theirs = known[0], known[-1]
        return math.sqrt(ours**2 / len(self.rows) + theirs**2 / len(self.cell.seeds))

    @property
    def loosely_close(self) -> bool:
        """True within 2 points or twice the published deviation, or if the published value is in the range of ours."""
        f = self.result
        values = [v for v in f.values if v is not None]
        if f.difference is None or f.published is None:
            return False
        return self.within_points or not self.beyond or min(values) <= f.published <= max(values)

    @property
    def within_points(self) -> bool:
        """True if the difference is at most 2 points; of bytes, at most 2 % of the published value."""
        f = self.result
        if f.difference is None or f.published is None:
            return False
        return abs(f.difference) <= CLOSE * max(1.0, f.published / 100)


def write(folder: Path) -> Path:
    """Write README.md and figure.svg of a folder of results from its rows.

    The file notes.md of the folder, with explanations of differences, is included in the page.

    Raises:
        BadInput: The folder has no results, a file can't be read, or its README.md was not written by this function.
    """
    _refuse_other_page(folder / PAGE)
    notes = read_text(folder / NOTES) if (folder / NOTES).exists() else ""
    results = Results(folder)
    if not any(True for _ in results):
        raise BadInput(f"{folder} holds no results: measure some with fedhead reproduce TABLE --results {folder}")
    if all(row.scale != "full" for row in results):
        raise BadInput(f"{folder} holds results of scale small alone, which the published ones are not compared with")
    every = [tables.load(name) for name in tables.names()]
    measured = {table.name: lines(table, results) for table in every}
    known = {row.digest for group in measured.values() for line in group for row in line.rows}
    rest = [row for row in results if row.digest not in known]
    others = _others(every, rest)
    plots.save(
        plots.against(_pairs(measured.values())),
        folder / PICTURE,
        title="fedhead reproduce: our results against the published ones",
    )
    left = [row for row in rest if not any(row in line.rows for line in others)]
    for line in _left_out(left):
        warn_once(f"{folder}: {line}")
    text = page(every, measured, others, results, left, notes)
    with atomic(folder / PAGE) as draft:
        draft.write_text(text, encoding="utf-8")
    return folder / PAGE


def _refuse_other_page(path: Path) -> None:
    """Check that an existing page was written by this module."""
    if not path.exists():
        return
    refuse_special(path)
    if _BEGIN.match(path.read_bytes()) is None:
        raise BadInput(
            f"{path} is not a page of results, so it is not overwritten: move it away (what is to stand in the page "
            f"belongs into {NOTES})"
        )


def lines(table: PaperTable, results: Results) -> list[Line]:
    """Return the measured cells of a table, without cells that have overrides."""
    cells = table.cells()
    return [line for cell in cells if (line := _line(table.name, cell, cells, results)) is not None]


def _line(table: str, cell: PaperCell, cells: Sequence[PaperCell], results: Results) -> Line | None:
    rows = results.of(digest(cell))
    if not rows:
        return None
    gains: list[float] = []
    published_gain = None
    alike = (c for c in cells if c.stage is None and c.keys == cell.keys and c.metric == cell.metric)
    # A mean over several rounds can't be compared with one model before the stage.
    before = next((c for c in alike if c.value == cell.value), None)
    if cell.stage is not None and before is not None:
        start = {(row.split, row.seed): row.value for row in results.of(digest(before))}
        pairs = [(row.value, start.get((row.split, row.seed))) for row in rows]
        gains = [after - first for after, first in pairs if after is not None and first is not None]
        theirs = published(cell), published(before)
        published_gain = theirs[0][0] - theirs[1][0] if theirs[0] and theirs[1] else None
    return Line(table, cell, cell_result(cell, rows), rows, gains, published_gain)


def _others(every: Iterable[PaperTable], rest: Iterable[Measurement]) -> list[Line]:
    """Return the measured cells with overrides, by cell and override."""
    cells = {(table.name, cell.name): (table, cell) for table in every for cell in table.cells()}
    groups: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for row in rest:
        if row.overrides and row.scale == "full" and (row.table, row.cell) in cells:
            groups.setdefault((row.table, row.cell, row.overrides, row.digest), []).append(row)
    out = []
    for (_, name, _, _), rows in groups.items():
        table, unchanged = cells[rows[0].table, name]
        if (cell := changed_cell(unchanged, rows[0])) is not None:
            out.append(
                Line(table.name, cell, cell_result(cell, rows, has_published_settings(table, cell)), rows, [], None)
            )
    return out


def _pairs(measured: Iterable[Sequence[Line]]) -> dict[str, list[tuple[float, float]]]:
    """Return (published, ours) of every accuracy, by paper."""
    out: dict[str, list[tuple[float, float]]] = {}
    for line in (line for group in measured for line in group):
        f = line.result
        if f.mean is not None and f.published is not None and f.published <= 100:
            out.setdefault(line.table.partition("/")[0], []).append((f.published, f.mean))
    return out


# -- text ---------------------------------------------------------------------------------------------
def page(
    every: Sequence[PaperTable],
    measured: dict[str, list[Line]],
    others: Sequence[Line],
    results: Results,
    left: Sequence[Measurement],
    notes: str = "",
) -> str:
    """Format the page as Markdown."""
    matched = [line for per_table in measured.values() for line in per_table if line.result.difference is not None]
    known = {published_place(line.cell) for line in matched}
    comparable = [line for line in others if line.result.difference is not None]
    varied = {published_place(line.cell): line for line in comparable}
    matched += [line for place, line in varied.items() if place not in known]
    agreeing = {published_place(line.cell) for line in comparable if line.within_points}
    explained = sum(not line.within_points and published_place(line.cell) in agreeing for line in matched)
    close, near, loose = (
        sum(getattr(line, rule) for line in matched) for rule in ("close", "within_points", "loosely_close")
    )
    single = sum(len(line.rows) == 1 for line in matched)
    total = sum(1 for row in published_rows() if row["mean"])
    parts = [
        "# Results",
        f"{len(known | varied.keys())} of the papers' {total} published values are measured, "
        f"{len(varied.keys() - known)} of them by a variant alone (under Other settings).",
        "\n".join(
            [
                f"- {close} of {len(matched)} cells are *close* to theirs: within {CLOSE:g} points and within twice "
                "the standard error of the difference, from both deviations over seeds. If one is unknown, the other "
                "is used; cells with neither are not close.",
                f"- {near} are within {CLOSE:g} points (bytes: {CLOSE:g} %), {explained} more with a variant of their "
                "table.",
                f"- {loose} are *loosely close*: within {CLOSE:g} points, or within twice the published deviation, "
                "which may be many points, or with the published value in the range of our runs.",
                f"- {single} have one split and one seed.",
                "- A value that a paper prints in several tables, such as FedAvg's, counts in each. The values of "
                f"ccvr/figure7 are those of its Table 3, and count once among the {total}.",
            ]
        ),
        f"Made by `fedhead reproduce --summary --results {results.folder}` from `results.csv`, one row per cell, split "
        "and seed. A row is measured again by `fedhead reproduce TABLE --cells CELL --seeds SEED, --splits SPLIT,` "
        "with the values of *changed* as KEY=VALUE, its device and its `--precision`, and without `--results`.",
        f"![Our results against the published ones]({PICTURE})",
        _time([*(line for group in measured.values() for line in group), *others]),
        *_left_out(left),
        "## Tables",
        _coverage(every, matched),
    ]
    if notes:
        parts += ["## Notes", notes.strip()]
    for table in every:
        if measured[table.name]:
            parts += [f"## {table.name}", table.title, _table(table, measured[table.name])]
    if others:
        parts += ["## Other settings", _changed(others)]
    parts.append(
        "ours: mean ± deviation over runs (FedClassAvg: over clients); runs: splits × seeds, or their number; "
        "difference: where the published value is for these settings, the table's own or a variant's; "
        f"**bold**: beyond twice the published deviation, or {CLOSE:g} points where there is none; in range: "
        "whether the published value lies between the lowest and the highest of our runs; gain: over the cell without "
        "the stage, of the same split and seed, where its value is that of the model the stage started from."
    )
    return "\n\n".join(parts) + "\n"


def _coverage(every: Sequence[PaperTable], matched: Sequence[Line]) -> str:
    """Count the published, the measured and the close values of each table."""
    body = []
    for table in every:
        places = {published_place(cell) for cell in table.cells() if published(cell)}
        mine = [line for line in matched if line.table == table.name]
        measured = {published_place(line.cell) for line in mine}
        agreeing = (sum(getattr(line, rule) for line in mine) for rule in ("loosely_close", "within_points", "close"))
        counts = [str(count) for count in (len(places), len(measured), *agreeing)]
        body.append([f"`{table.name}`", table.title.partition(": ")[2], *counts])
    head = ["table", "", "published values", "measured", "loosely close", f"within {CLOSE:g} points", "close"]
    return _markdown(head, body)


def _left_out(rows: Sequence[Measurement]) -> list[str]:
    """Describe the rows that the page leaves out, and the reason."""
    small = [row for row in rows if row.scale != "full"]
    lost = [row for row in rows if row.scale == "full"]
    names = list(dict.fromkeys(f"{row.table} {row.cell} {row.overrides}".strip() for row in lost))
    rest = [f"… {len(names) - _MOST} more"] if len(names) > _MOST else []
    listed = "; ".join([*names[:_MOST], *rest])
    message = f"Left out: {_rows(lost)} of settings, or of own code, that no table has now: {listed}."
    scale = f"Left out: {_rows(small)} of scale small, which the published values are not compared with."
    return [*([message] if lost else []), *([scale] if small else [])]


def _rows(rows: Sequence[Measurement]) -> str:
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''}"


def _table(table: PaperTable, measured: Sequence[Line]) -> str:
    gains = any(line.gains for line in measured)
    head = [*table.axes(), "ours", "runs", "published", "difference", "in range"]
    head += ["gain", "published gain"] if gains else []
    body = []
    for line in measured:
        row = [*(line.cell.choices[axis] for axis in table.axes()), *_columns(line)]
        if gains:
            theirs = "" if line.published_gain is None or not line.gains else f"{line.published_gain:+.2f}"
            row += [mean_std(line.gains, sign="+") if line.gains else "", theirs]
        body.append(row)
    every = len(table.cells())
    left = "" if len(measured) == every else f"\n\n{every - len(measured)} of its {every} cells are not measured yet."
    return _markdown(head, body) + left


def _changed(others: Sequence[Line]) -> str:
    head = ["table", "cell", "changed", "ours", "runs", "published", "difference", "in range"]
    body = [[line.table, line.cell.name, f"`{' '.join(line.cell.overrides)}`", *_columns(line)] for line in others]
    return _markdown(head, body)


def _columns(line: Line) -> list[str]:
    f = line.result
    values = [v for v in f.values if v is not None]
    difference = "" if f.difference is None else f"{f.difference:+.2f}"
    inside = ""
    if f.comparable and f.published is not None and len(values) > 1:
        inside = "yes" if min(values) <= f.published <= max(values) else "no"
    return [
        plus_minus(f.mean, f.deviation),
        _runs(line.rows),
        plus_minus(f.published, f.published_deviation),
        f"**{difference}**" if line.beyond else difference,
        inside,
    ]


def _runs(rows: Sequence[Measurement]) -> str:
    splits, seeds = {row.split for row in rows}, {row.seed for row in rows}
    return f"{len(splits)} × {len(seeds)}" if len(splits) * len(seeds) == len(rows) else str(len(rows))


def _time(measured: Iterable[Line]) -> str:
    """Describe the total time; a training or stage shared by several cells counts once."""
    trainings: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    stages: dict[tuple[str, str], dict[tuple[str, str, str, float], float]] = {}
    for row, cell in {row: line.cell for line in measured for row in line.rows}.items():
        where = (row.device, row.precision)
        # Another commit means another training.
        training = (training_key(cell.recipe(row.seed, row.split)), row.commit)
        if row.training_seconds is not None:
            trainings.setdefault(where, {}).setdefault(training, row.training_seconds)
        if row.stage_seconds is not None:
            stages.setdefault(where, {})[(*training, row.stage, row.stage_seconds)] = row.stage_seconds
    texts = [
        f"{len(took)} trainings in {_hours(sum(took.values()))}, their stages in "
        f"{_hours(sum(stages.get(where, {}).values()))} on {where[0]} ({where[1]})"
        for where, took in sorted(trainings.items())
    ]
    return (
        "Wall-clock time, preparation included, summed over the runs, some of which ran side by side: "
        + "; ".join(texts)
        + "."
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.1f} min"


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
