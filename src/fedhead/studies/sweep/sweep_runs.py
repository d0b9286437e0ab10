"""The runs of a sweep: one ordinary run folder per cell and seed, in bundles that are run as a whole."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedhead.core.system.errors import BadInput
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.recipe_equality import canonical
from fedhead.recipes.run_folder_schema import DamagedRun
from fedhead.runs.failures import describe_error, raise_if_fatal
from fedhead.runs.rerun_warnings import warn_of_changes
from fedhead.runs.reuse_training import fork, trained
from fedhead.runs.run import Compute
from fedhead.runs.run_folder import CONFIG, RunFolder
from fedhead.runs.training_groups import diverged, group_trainings, train_joined, train_one, training_key
from fedhead.studies.sweep.seeds_and_splits import drawn_seeds
from fedhead.studies.sweep.sweep_file import base_of, cell_name, check_seeds, plain
from fedhead.studies.sweep.tables import Cell, Table

Bundle = Mapping[Path, Recipe]  # run folders whose runs train together or alike, so that one process runs them all
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
        if (other := seen.setdefault(_meaning(cell, name), name)) is not name:
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


def warn_of_changed_base(source: str | Path, table: Table, seeds: int | Sequence[int] | None = None) -> None:
    """Warn as `warn_of_changes` does where a sweep is over the recipe of a run.

    Args:
        source: What the sweep was planned from.
        table: The sweep.
        seeds: As of `sweep_cells`.
    """
    warn_of_changes(base_of(source), [next(iter(cell.runs.values())) for cell in sweep_cells(table, seeds)])


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
        recipe = cell.recipe(seed)
        if cell.stage is None or cell.stage in recipe.stages:
            return recipe
        with_stage = {**recipe.flat(), "stages": [*recipe.stages, cell.stage]}
        with_stage |= {f"stage.{cell.stage}.{word}": value for word, value in cell.parameters.items()}
        return Recipe.from_flat(with_stage, recipe.folders)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error


def _meaning(cell: Cell, name: str) -> str:
    """Return what a cell's settings mean, however they are written."""
    recipe = _recipe(cell, 0, name)
    try:
        return canonical(recipe)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error


def settings_of(recipe: Recipe) -> str:
    """Return what decides a cell: every setting but the seed, as one text."""
    return json.dumps({k: v for k, v in recipe.flat().items() if k not in ("seed", "seeds")}, sort_keys=True)


def _folders(names: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Return folders' names that can be read, with a hash where two would be the same or one is too long."""
    plain = [re.sub(r"[^A-Za-z0-9.=+_-]+", "-", name).strip("-.") for name in names]
    alike = Counter(text.lower() for text in plain)  # some file systems do not tell A from a
    codes = [hashlib.blake2b(text.encode(), digest_size=4).hexdigest() for text in keys]
    return [
        f"{text[:_LONGEST]}-{code}" if not text or len(text) > _LONGEST or alike[text.lower()] > 1 else text
        for text, code in zip(plain, codes, strict=True)
    ]


def bundles(runs: Mapping[Path, Recipe], together: bool | None, device: torch.device) -> list[Bundle]:
    """Return the runs in bundles: those that train alike, and with them those that may share a stack.

    Which runs a bundle has does not depend on how far they are, so that every shard of a sweep sees the same ones.

    Args:
        runs: The runs by their folders, in the order in which they are to be run.
        together: Whether runs train together; None: on a GPU.
        device: Where they are to train.
    """
    first = {paths[0]: paths for paths in trainings(runs)}
    groups = group_trainings({path: runs[path] for path in first}, together, device)
    return [{path: runs[path] for lead in leads for path in first[lead]} for _, leads in groups]


def trainings(bundle: Bundle) -> list[list[Path]]:
    """Return the folders of a bundle's runs, those that train alike in one list."""
    alike: dict[str, list[Path]] = {}
    for path, recipe in bundle.items():
        alike.setdefault(training_key(recipe), []).append(path)
    return list(alike.values())


def run_bundle(bundle: Bundle, together: bool | None, settings: Compute) -> dict[Path, str]:
    """Run what is not finished of a bundle, each run from where it stands.

    Args:
        bundle: The runs by their folders.
        together: Whether runs train together; None: where a stack is fastest.
        settings: How and where to compute.

    Returns:
        Why runs failed, by their folders; the others are finished.

    Raises:
        OSError: Or another error that says that the disk is full or broken: no other run could be written either.
    """
    alike = trainings(bundle)
    leads = {paths[0]: bundle[paths[0]] for paths in alike}
    failures: dict[Path, str] = {}
    joined: set[Path] = set()
    try:
        for paths in alike:
            _fork_new(paths[0], paths, bundle)
        joined = train_joined(leads, together, settings)
    except Exception as error:  # of a damaged folder; below each run is asked for its own error
        raise_if_fatal(error)
    for paths in alike:
        for path in paths:
            if path in joined and (reason := diverged(path)) is not None:
                failures[path] = reason
                continue
            try:
                _fork_new(path, paths, bundle)
                train_one(path, bundle[path], settings)
            except Exception as error:  # a user's own code may raise anything
                raise_if_fatal(error)
                failures[path] = describe_error(error)
    return failures


def _fork_new(path: Path, alike: Sequence[Path], bundle: Bundle) -> None:
    """Put a run that is not begun where one that trains alike ended, if there is one."""
    if not (path / CONFIG).exists() and (source := trained(alike)) is not None:
        fork(source, path, bundle[path])


def is_finished(path: Path) -> bool:
    """Say whether a folder holds a finished run whose results can be read."""
    return result_of(path) is not None


def result_of(path: Path) -> dict[str, Any] | None:
    """Return a run's final results; None where it has none, or a damaged folder, which the run itself will name."""
    try:
        return RunFolder.open(path).result() if (path / CONFIG).exists() else None
    except DamagedRun:
        return None
