"""The named axes of the sweeps that runs belong to, by which a comparison can be arranged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fedhead.core.errors import BadInput
from fedhead.experiment.recipe import is_key
from fedhead.experiment.run_files import SWEEP
from fedhead.report.measured import Measured

_ROWS = ("method", "stage", "stages")  # what the rows of a comparison are


def with_choices(measured: Sequence[Measured], by: Iterable[str]) -> list[Measured]:
    """Return what runs measured, with what each run's sweep chose on its named axes, where one of these is asked for.

    Args:
        measured: What the runs measured; `where` is the run folder.
        by: Keys of recipes, and names of axes.

    Raises:
        BadInput: A sweep's file is damaged, or the axis asked for chooses methods and stages, which are the rows.
    """
    asked = [name for name in by if not is_key(name)]
    if not asked:
        return list(measured)
    read = cache(_of_sweep)  # a sweep has many runs
    found = []
    for m in measured:
        run = Path(m.where).resolve()
        cells = read(run.parents[2]) if len(run.parents) > 2 else {}
        found.append(replace(m, choices=cells.get(run.parent, {})))
    for sweep in {Path(m.where).resolve().parents[2] for m in found if m.choices}:
        _refuse_rows(sweep, asked)
    return found


def _of_sweep(folder: Path) -> dict[Path, Mapping[str, str]]:
    """Return the choices on the named axes of a sweep by the folders of its cells; nothing where there is no sweep."""
    from fedhead.experiment.sweep_file import plan  # imports torch
    from fedhead.experiment.sweep_runs import RUNS, cell_folders

    if not (folder / SWEEP).is_file():
        return {}
    return {
        folder / RUNS / name: {axis: choice for axis, choice in cell.choices.items() if not is_key(axis)}
        for name, (cell, _) in cell_folders(plan(folder / SWEEP, {})).items()
    }


def _refuse_rows(sweep: Path, asked: Iterable[str]) -> None:
    from fedhead.experiment.sweep_file import plan

    axes: Mapping[str, Mapping[str, Any]] = plan(sweep / SWEEP, {}).content["axes"]
    for axis in asked:
        keys = [key for layer in axes.get(axis, {}).values() for key in (layer or {}).get("set", {})]
        if axis in axes and all(key.partition(".")[0] in _ROWS for key in keys):
            raise BadInput(
                f"by {axis}: its choices are methods and stages, which are the rows; name a setting, such as partition"
            )
