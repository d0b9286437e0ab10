"""The named axes of the sweeps that runs belong to, by which a comparison can be arranged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput
from fedhead.recipes.recipe import is_key
from fedhead.recipes.run_folder_schema import SWEEP
from fedhead.report.compare.measured import Choice, Measured

_ROWS = ("method", "stage", "stages")  # what the rows of a comparison are


def with_choices(measured: Sequence[Measured], by: Iterable[str]) -> list[Measured]:
    """Return what runs measured, with what each run's sweep chose on its named axes, where one of these is asked for.

    Args:
        measured: What the runs measured; `where` is the run folder.
        by: Keys of recipes, and names of axes.

    Raises:
        BadInput: A sweep's file is damaged, and a name is no key of recipes; or the axis asked for chooses methods and
            stages, which are the rows.
    """
    asked = [name for name in by if not _of_row(name)]
    if not asked:
        return list(measured)
    read = cache(_of_sweep)  # a sweep has many runs
    found = []
    for m in measured:
        run = Path(m.where).resolve()
        try:
            cells = read(run.parents[2]) if len(run.parents) > 2 else {}
        except BadInput:
            if not all(map(is_key, asked)):
                raise
            cells = {}  # the recipes have these keys, whatever is the matter with the sweep's file
        found.append(replace(m, choices=cells.get(run.parent, {})))
    for sweep in {Path(m.where).resolve().parents[2] for m in found if m.choices}:
        _refuse_rows(sweep, asked)
    return found


def _of_sweep(folder: Path) -> dict[Path, Mapping[str, Choice]]:
    """Return the choices on the named axes of a sweep by the folders of its cells; nothing where there is no sweep."""
    if not (folder / SWEEP).is_file():
        return {}
    from fedhead.studies.sweep.sweep_file import plan  # imports torch
    from fedhead.studies.sweep.sweep_runs import RUNS, cell_folders

    table = plan(folder / SWEEP, {})
    axes: Mapping[str, Mapping[str, Any]] = table.content["axes"]
    named = {axis: list(choices) for axis, choices in axes.items() if _is_named(axis, choices)}
    return {
        folder / RUNS / name: {
            axis: Choice(choice, named[axis].index(choice)) for axis, choice in cell.choices.items() if axis in named
        }
        for name, (cell, _) in cell_folders(table).items()
    }


def _is_named(axis: str, choices: Mapping[str, Mapping[str, Any] | None]) -> bool:
    """Say whether the choices of an axis are named: they are not just the values of a recipe's key."""
    from fedhead.studies.sweep.sweep_file import choice_label

    if not is_key(axis):
        return True

    def is_value(choice: str, layer: Mapping[str, Any]) -> bool:
        value = layer.get("set", {}).get(axis)
        return layer == {"set": {axis: value}} and choice == choice_label(value)

    decided = {choice: {k: v for k, v in (layer or {}).items() if k != "seeds"} for choice, layer in choices.items()}
    return not _of_row(axis) and not all(map(is_value, decided.keys(), decided.values()))


def _of_row(axis: str) -> bool:
    return axis.partition(".")[0] in _ROWS


def _refuse_rows(sweep: Path, asked: Iterable[str]) -> None:
    from fedhead.studies.sweep.sweep_file import plan

    axes: Mapping[str, Mapping[str, Any]] = plan(sweep / SWEEP, {}).content["axes"]
    for axis in asked:
        keys = [key for layer in axes.get(axis, {}).values() for key in (layer or {}).get("set", {})]
        if axis in axes and all(map(_of_row, keys)):
            raise BadInput(
                f"by {axis}: its choices are methods and stages, which are the rows; name a setting, such as partition"
            )
