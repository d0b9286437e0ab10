"""Measured results in a CSV file: one row per cell, split and seed.

Rows are appended and flushed immediately. Existing rows are not measured again, on any machine. All *.csv files of the
folder are read, so rows of several machines can be combined.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from filelock import FileLock

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.core.system.special_files import refuse_special
from fedhead.core.tree.digest import digest_json
from fedhead.papers.tables.paper_tables import PaperCell
from fedhead.recipes import components
from fedhead.recipes import experiment as build
from fedhead.recipes.recipe import Recipe
from fedhead.studies.writable import check_writable

FILE = "results.csv"
_FIX = "correct it, or remove the line: its result is then measured again"


@dataclass(frozen=True)
class Measurement:
    """Row: a cell measured with one seed on one split."""

    table: str
    cell: str
    overrides: str  # key=value changes of the table's keys
    digest: str  # hash of all keys except seed and split, see `digest`
    scale: str
    split: int  # seed of the partition
    seed: int
    metric: str
    value: float | None  # value of the cell's metric
    stage: str  # stage of the next three values; none: after the last round
    accuracy: float | None  # accuracy of the global model in per cent
    accuracy_mean: float | None  # mean accuracy over the last rounds
    personal: float | None  # mean accuracy of the clients' personal models
    client_deviation: float | None  # standard deviation of that accuracy over clients
    bytes_up: int | None
    bytes_down: int | None
    training_seconds: float | None  # wall-clock time with preparation, divided by the runs that shared it
    stage_seconds: float | None
    together: int | None  # number of runs trained together
    executor: str
    precision: str
    device: str
    version: str
    commit: str
    date: str


_TYPES = get_type_hints(Measurement)


# Keys that don't affect a result, or have their own column.
NOT_IN_DIGEST = ("seed", "seeds", "partition_seed", "loggers")


def digest(cell: PaperCell) -> str:
    """Return a hash that identifies a result: of `all_settings` without seed and split.

    `evaluate_every` is included only with callbacks, which may stop a run or keep a round by an evaluation.
    """
    settings = all_settings(cell.recipe(0))
    left_out = NOT_IN_DIGEST if "callbacks" in settings else (*NOT_IN_DIGEST, "evaluate_every")
    keys = {k: v for k, v in settings.items() if k not in left_out}
    keys |= {"figure": cell.value}  # never rename: part of the digests of recorded rows
    return digest_json(keys, 6)


def all_settings(recipe: Recipe) -> dict[str, Any]:
    """Return all values that determine a recipe's result.

    All parameters of method and stages are included, so that a changed default changes the digest. Keys that are off
    (null, false, empty) are left out, so that a new option leaves the digest unchanged. External components are
    included by the digest of their code.
    """
    method, stages = build.algorithms(recipe)
    keys = recipe.flat() | _fields("method", method)
    for stage in stages:
        keys |= _fields(f"stage.{stage.name}", stage)
    keys |= {"code": [entry["digest"] for entry in components.sources(recipe) if "digest" in entry]}
    return _without_off(keys)


def _fields(prefix: str, component: Any) -> dict[str, Any]:
    parameters = [f.name for f in dataclasses.fields(component) if f.name != "method"]
    return {f"{prefix}.{name}": getattr(component, name) for name in parameters}


def _without_off(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in keys.items() if not (v is None or v is False or v in ("", [], ()))}


class Results:
    """Measurements of a folder, or of this process without a folder."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self._rows: dict[tuple[str, int, int], Measurement] = {}  # the first row of each digest, split and seed
        self._named: dict[tuple[str, ...], Measurement] = {}  # all rows; cells of several tables share a digest
        self.read()

    def read(self) -> None:
        """Read or reload the folder's files; rows in memory stay."""
        files = [] if self.folder is None else sorted(self.folder.glob("[!.]*.csv"))  # drafts start with a dot
        for path in files:
            if path.stem != "table" and not path.name.startswith("table-"):  # tables, if --out is the same folder
                for row in _read(path):
                    self._enter(row)

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self._named.values())

    def find(self, digest: str, split: int, seed: int) -> Measurement | None:
        """Return the stored result of a digest, split and seed, or None; cells of equal digest share their results."""
        return self._rows.get((digest, split, seed))

    def of(self, digest: str) -> list[Measurement]:
        """Return all rows of a result, sorted by split and seed."""
        rows = [row for key, row in self._rows.items() if key[0] == digest]
        return sorted(rows, key=lambda row: (row.split, row.seed))

    def add(self, row: Measurement) -> None:
        """Append a row to the file and flush it; an existing row is kept.

        A row without a value is logged and not stored.
        """
        if row.value is None:
            warn_once(f"{row.table}, {row.cell}: seed {row.seed} on split {row.split} has no {row.metric}: no result")
            return
        if _name(row) in self._named:
            return
        if self.folder is not None:
            _append(self.folder / FILE, row)
        self._enter(row)

    def check_writable(self) -> None:
        """Check that the folder is writable, before any training."""
        if self.folder is not None:
            check_writable(self.folder, "results", "--results")

    def _enter(self, row: Measurement) -> None:
        first = self._rows.setdefault((row.digest, row.split, row.seed), row)
        if first.value != row.value:
            warn_once(
                f"{row.table}, {row.cell}: seed {row.seed} on split {row.split} was measured twice with different "
                f"results, {first.value} and {row.value}; the first counts"
            )
        self._named.setdefault(_name(row), row)


def _name(row: Measurement) -> tuple[str, ...]:
    return (row.table, row.cell, row.digest, str(row.split), str(row.seed))


def _append(path: Path, row: Measurement) -> None:
    """Add a row by replacing the file, unless another process has added it."""
    path = path.resolve()  # replace the file that a link names, not the link
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            if path.exists() and any(_name(row) == _name(other) for other in _read(path)):
                return  # added by another process
            text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
            lines = io.StringIO()
            writer = csv.writer(lines, lineterminator="\n")
            if not text:
                writer.writerow(_TYPES)
            writer.writerow(dataclasses.astuple(row))
            end = "\n" if text and not text.endswith("\n") else ""
            with atomic(path) as draft:
                draft.write_text(f"{text}{end}{lines.getvalue()}", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} can't be written: {error.strerror}") from error


def _read(path: Path) -> Iterator[Measurement]:
    refuse_special(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # spreadsheets write a BOM
            reader = csv.reader(file)
            if (header := next(reader, list(_TYPES))) != list(_TYPES):
                raise BadInput(
                    f"{path} is no file of results: its first line has {','.join(header)} in place of "
                    f"{','.join(_TYPES)}; repair that line, or move the file away"
                )
            for fields in filter(None, reader):
                where = f"{path}, line {reader.line_num}"
                if len(fields) != len(header):
                    raise BadInput(f"{where}: it has {len(fields)} of {len(header)} columns; {_FIX}")
                yield Measurement(
                    **{name: _value(where, name, text) for name, text in zip(header, fields, strict=True)}
                )
    except (OSError, UnicodeError, csv.Error) as error:
        raise BadInput(f"{path} can't be read: {error}") from error


def _value(where: str, name: str, text: str) -> Any:
    """Parse the value of a column."""
    hint = _TYPES[name]
    if hint is str:
        return text
    if not text and name != "value" and hint not in (int, float):
        return None
    whole = hint in (int, int | None)
    try:
        number = int(text) if whole else float(text)
        is_finite = math.isfinite(number)
    except (ValueError, OverflowError):
        is_finite = False
    if not is_finite:
        raise BadInput(f"{where}, column {name}: {text!r} is not a {'whole ' if whole else ''}number; {_FIX}")
    return number


def value_at(result: Mapping[str, Any], place: str) -> float | None:
    """Return the number at a dotted path of a run's or a stage's results; None if it is missing."""
    value: Any = result
    for word in place.split("."):
        value = value.get(word) if isinstance(value, Mapping) else None
    return None if value is None else float(value)
