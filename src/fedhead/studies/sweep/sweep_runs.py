"""The runs of a sweep: one ordinary run folder per cell and seed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput, Diverged
from fedhead.core.system.failures import describe_error, raise_if_fatal
from fedhead.core.tree.digest import digest_text
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CONFIG, DamagedRun
from fedhead.studies.reuse_training import fork, trained
from fedhead.studies.sweep.seeds_and_splits import drawn_seeds
from fedhead.studies.sweep.sweep_file import cell_name, check_seeds, plain
from fedhead.studies.sweep.tables import Cell, Table
from fedhead.studies.training import train, training_key

RUNS = "runs"
_LONGEST = 100  # characters of a folder's name


@dataclass(frozen=True)
class SweepCell:
    """A cell of a sweep: its choices, and a run per seed."""

    name: str
    choices: Mapping[str, str]
    runs: Mapping[Path, Recipe]  # by their folders, relative to the sweep's


def sweep_cells(table: Table, seeds: int | Sequence[int] | None = None) -> list[SweepCell]:
    """Return the cells of a sweep.

    Args:
        table: The sweep.
        seeds: How many seeds, or which; None: the sweep's own.

    Raises:
        BadInput: The seeds can't be read, a cell's settings are no recipe, two cells are the same, or there is none.
    """
    if seeds is not None:
        check_seeds("seeds", seeds := plain(seeds))
    found = cell_folders(table)
    seen: dict[str, str] = {}
    for cell, name in found.values():
        if (other := seen.setdefault(settings_of(_recipe(cell, 0, name)), name)) is not name:
            raise BadInput(f"the cells {other!r} and {name!r} are the same: their settings do not differ; remove one")
    return [
        SweepCell(
            name,
            cell.choices,
            {
                Path(RUNS) / folder / f"seed-{seed}": _recipe(cell, seed, name)
                for seed in drawn_seeds(cell.seeds, seeds)
            },
        )
        for folder, (cell, name) in found.items()
    ]


def cell_folders(table: Table) -> dict[str, tuple[Cell, str]]:
    """Return the cells of a sweep and their names, by the folders' names in `runs/`.

    Raises:
        BadInput: A cell's settings are no recipe, or there is no cell.
    """
    found = table.cells()
    if not found:
        raise BadInput(f"{table.name}: there is no cell; `skip` leaves nothing")
    names = [cell_name(cell.choices) for cell in found]
    keys = [settings_of(_recipe(cell, 0, name)) for cell, name in zip(found, names, strict=True)]
    return dict(zip(_folders(names, keys), zip(found, names, strict=True), strict=True))


def _recipe(cell: Cell, seed: int, name: str) -> Recipe:
    try:
        return cell.recipe(seed)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error


def settings_of(recipe: Recipe) -> str:
    """Return what decides a cell: every setting but the seed, as one text."""
    return json.dumps({k: v for k, v in recipe.flat().items() if k not in ("seed", "seeds")}, sort_keys=True)


def _folders(names: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Return folders' names that can be read, with a hash where two would be the same or one is too long."""
    plain = [re.sub(r"[^A-Za-z0-9.=+_-]+", "-", name).strip("-.") for name in names]
    alike = Counter(text.lower() for text in plain)  # some file systems do not tell A from a
    codes = [digest_text(text, 4) for text in keys]
    return [
        f"{text[:_LONGEST]}-{code}" if not text or len(text) > _LONGEST or alike[text.lower()] > 1 else text
        for text, code in zip(plain, codes, strict=True)
    ]


def trainings(runs: Mapping[Path, Recipe]) -> list[dict[Path, Recipe]]:
    """Group runs that train alike and differ in their stages alone."""
    alike: dict[str, dict[Path, Recipe]] = {}
    for path, recipe in runs.items():
        alike.setdefault(training_key(recipe), {})[path] = recipe
    return list(alike.values())


def run_alike(runs: Mapping[Path, Recipe], settings: Compute) -> dict[Path, str]:
    """Run what is not finished of runs that train alike; they train once.

    Args:
        runs: The runs by their folders.
        settings: How and where to compute.

    Returns:
        Why runs failed, by their folders; the others are finished.

    Raises:
        OSError: Or another error that says that the disk is full or broken: no other run could be written either.
    """
    failures: dict[Path, str] = {}
    for path, recipe in runs.items():
        try:
            if not (path / CONFIG).exists() and (source := trained(runs)) is not None:
                fork(source, path, recipe)
            train(path, recipe, settings)
        except Exception as error:  # a user's own code may raise anything
            raise_if_fatal(error)
            failures[path] = describe_error(error)
            if isinstance(error, Diverged) and trained(runs) is None:  # the others would diverge too
                return {other: failures.get(other, failures[path]) for other in runs if not is_finished(other)}
    return failures


def is_finished(path: Path) -> bool:
    """Say whether a folder holds a finished run whose results can be read."""
    return result_of(path) is not None


def result_of(path: Path) -> dict[str, Any] | None:
    """Return a run's final results; None where it has none, or a damaged folder, which the run itself will name."""
    try:
        return RunFolder.open(path).result() if (path / CONFIG).exists() else None
    except DamagedRun:
        return None
