"""Analyses by name on run folders, and the lines that show their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import require
from fedhead.papers.analyses.registry import ANALYSES, AnalysisOptions, AnalysisReport
from fedhead.runs.read_runs import load_run, run_folders
from fedhead.runs.reopen import reopen
from fedhead.runs.run_folder import RunFolder

_MOST = 8  # numbers of a list that are printed one by one


def analyze(
    kind: str, paths: Sequence[Path], options: AnalysisOptions, data: Path | None, device: str
) -> tuple[list[Path], AnalysisReport]:
    """Run an analysis on run folders.

    Args:
        kind: Its name, or file.py:function.
        paths: Run folders, or folders that hold some.
        options: Its options.
        data: The folder of the data sets; None: the default one.
        device: Where to compute.

    Returns:
        The run folders, and what the analysis found.

    Raises:
        BadInput: If there is no run, or the analysis can't follow it.
    """
    places = run_folders(paths)
    require(places, f"{kind} needs a run: give its folder, such as runs/NAME")
    recipes = [RunFolder.open(place).recipe for place in places]
    # the analysis is named here and now: that code of a run is missing is no matter, unless the run is opened
    found = ANALYSES.find(kind, [folder for recipe in recipes for folder in recipe.folders if folder.is_dir()])
    if found.reads == "records":
        return places, found.run([load_run(place) for place in places], options)
    for place, recipe in zip(places, recipes, strict=True):
        require(
            recipe.objective in (None, "multiclass") or not found.run.__module__.startswith("fedhead."),
            f"analysis {kind} compares classes, {place} has objective={recipe.objective}: it can't follow",
        )
    return places, found.run([reopen(place, data, device) for place in places], options)


def lines(numbers: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield numbers as lines to read; long lists as their length and range.

    >>> print(*lines({"a": {"before": 71.25, "features": [50, 100]}, "b": list(range(100))}), sep="\\n")
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
                yield f"{indent}  " + "  ".join(f"{key} {_short(one)}" for key, one in row.items())
        else:
            yield f"{indent}{name:<{max(1, 30 - len(indent))}}{_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, list):
        flat = list(_flat(value))
        if len(flat) <= _MOST or not all(isinstance(one, int | float) for one in flat):
            return " ".join(map(_short, flat[:_MOST])) + (" …" if len(flat) > _MOST else "")
        return f"{len(flat)} numbers, {_short(min(flat))} … {_short(max(flat))}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for one in value:
            yield from _flat(one)
    else:
        yield value
