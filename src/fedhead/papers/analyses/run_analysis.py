"""Running of analyses on run folders, and formatting of their numbers."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import require
from fedhead.core.system.spreadsheet import without_formula
from fedhead.papers.analyses.registry import ANALYSES, AnalysisOptions, AnalysisReport
from fedhead.runs.read_runs import load_run, run_folders
from fedhead.runs.reopen import reopen
from fedhead.runs.run_folder import RunFolder

_MOST = 8  # longest list that is printed in full


def analyze(
    kind: str, paths: Sequence[Path], options: AnalysisOptions, data_dir: Path | None, device: str
) -> tuple[list[Path], AnalysisReport]:
    """Run an analysis on run folders.

    Args:
        kind: Name of the analysis, or file.py:function.
        paths: Run folders, or folders of run folders.
        options: Options of the analysis.
        data_dir: Folder of the data sets; None: the default one.
        device: Device.

    Returns:
        The run folders and the report of the analysis.

    Raises:
        BadInput: If there is no run, or the analysis does not support it.
    """
    places = run_folders(paths)
    require(places, f"{kind} needs a run: give its folder, such as runs/NAME")
    recipes = [RunFolder.open(place).recipe for place in places]
    # The user's own components are imported only by analyses that need the models.
    selected = ANALYSES.find(kind, [folder for recipe in recipes for folder in recipe.folders if folder.is_dir()])
    if selected.reads == "records":
        return places, selected.run([load_run(place) for place in places], options)
    for place, recipe in zip(places, recipes, strict=True):
        require(
            recipe.objective in (None, "multiclass") or not selected.run.__module__.startswith("fedhead."),
            f"analysis {kind} compares classes, {place} has objective={recipe.objective}: it can't follow",
        )
    return places, selected.run([reopen(place, data_dir, device) for place in places], options)


def lines(numbers: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    r"""Format numbers as lines; long lists as their length and range.

    >>> print(*lines({"a": {"before": 71.25, "features": [50, 100]}, "b": list(range(100))}), sep="\n")
    a
      before                      71.25
      features                    50 100
    b                             100 numbers, 0 … 99
    """
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}"
            yield from lines(value, indent + "  ")
        elif isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            yield f"{indent}{name}"
            for row in value:
                yield f"{indent}  " + "  ".join(f"{key} {_short(item)}" for key, item in row.items())
        else:
            yield f"{indent}{name:<{max(1, 30 - len(indent))}}{_short(value)}"


def write_csv(numbers: Mapping[str, Any], path: Path) -> None:
    """Write numbers as a CSV file: a name and one or more values per row; each row of a matrix is a CSV row."""
    with atomic(path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        rows = ([without_formula(value) for value in row] for row in _csv_rows(numbers))
        csv.writer(file, lineterminator="\n").writerows(rows)


def _csv_rows(numbers: Any, name: str = "") -> Iterator[list[Any]]:
    """Flatten numbers to rows.

    >>> list(_csv_rows({"fedavg": {"rounds": [1, 2], "norms": [[0.5, 0.25], [1.0, 2.0]]}}))
    [['fedavg/rounds', 1, 2], ['fedavg/norms/0', 0.5, 0.25], ['fedavg/norms/1', 1.0, 2.0]]
    """
    nested = isinstance(numbers, list) and any(isinstance(item, list | Mapping) for item in numbers)
    if isinstance(numbers, Mapping) or nested:
        for key, value in numbers.items() if isinstance(numbers, Mapping) else enumerate(numbers):
            yield from _csv_rows(value, f"{name}/{key}" if name else str(key))
    else:
        values = numbers if isinstance(numbers, list) else [numbers]
        yield [name, *(float(f"{value:.5g}") if isinstance(value, float) else value for value in values)]


def _short(value: Any) -> str:
    if isinstance(value, list):
        flat = list(_flat(value))
        if len(flat) <= _MOST or not all(isinstance(number, int | float) for number in flat):
            return " ".join(map(_short, flat[:_MOST])) + (" …" if len(flat) > _MOST else "")
        return f"{len(flat)} numbers, {_short(min(flat))} … {_short(max(flat))}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value
