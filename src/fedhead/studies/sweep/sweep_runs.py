"""Runs of a sweep: one ordinary run folder per cell and seed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedhead.core.system.errors import BadInput, require
from fedhead.core.tree.digest import digest_text
from fedhead.recipes.recipe import Recipe
from fedhead.studies.sweep.seeds_and_splits import drawn_seeds
from fedhead.studies.sweep.sweep_file import cell_name, check_seeds, plain
from fedhead.studies.sweep.tables import Cell, Table

RUNS = "runs"
_LONGEST = 100  # characters of a folder name


@dataclass(frozen=True)
class SweepCell:
    """Cell of a sweep: its choices and one run per seed."""

    name: str
    choices: Mapping[str, str]
    runs: Mapping[Path, Recipe]  # recipes by run folder, relative to the folder of the sweep


def sweep_cells(table: Table, seeds: int | Sequence[int] | None = None) -> list[SweepCell]:
    """Return the cells of a sweep.

    Args:
        table: Sweep.
        seeds: Number or list of seeds; None: the seeds of the sweep.

    Raises:
        BadInput: The seeds or a cell's keys are invalid, two cells are equal, or there is no cell.
    """
    if seeds is not None:
        check_seeds("seeds", seeds := plain(seeds))
    cells = table.cells()
    if not cells:
        raise BadInput(f"{table.name}: there is no cell; `skip` leaves nothing")
    names = [cell_name(cell.choices) for cell in cells]
    keys = [settings_of(_recipe(cell, 0, name)) for cell, name in zip(cells, names, strict=True)]
    seen: dict[str, str] = {}
    for name, key in zip(names, keys, strict=True):
        if (other := seen.setdefault(key, name)) is not name:
            raise BadInput(f"the cells {other!r} and {name!r} are the same: their settings do not differ; remove one")
    sweep = [
        SweepCell(
            name,
            cell.choices,
            {
                Path(RUNS) / folder / f"seed-{seed}": _recipe(cell, seed, name)
                for seed in drawn_seeds(cell.seeds, seeds)
            },
        )
        for folder, cell, name in zip(_folders(names, keys), cells, names, strict=True)
    ]
    require(
        table.axes() or len(sweep[0].runs) > 1,
        f"{table.name}: nothing varies; give an axis, with its values in brackets as in 'lr=[0.1,0.2]', "
        "or several seeds, or use fedhead run",
    )
    return sweep


def _recipe(cell: Cell, seed: int, name: str) -> Recipe:
    try:
        return cell.recipe(seed)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error


def settings_of(recipe: Recipe) -> str:
    """Serialize all recipe keys except the seed, which identify a cell."""
    return json.dumps({k: v for k, v in recipe.flat().items() if k != "seed"}, sort_keys=True)


def _folders(names: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Return readable folder names, with a hash where names collide or are too long."""
    plain = [re.sub(r"[^A-Za-z0-9.=+_-]+", "-", name).strip("-.") for name in names]
    counts = Counter(text.lower() for text in plain)  # some file systems are case-insensitive
    codes = [digest_text(text, 4) for text in keys]
    return [
        f"{text[:_LONGEST]}-{code}" if not text or len(text) > _LONGEST or counts[text.lower()] > 1 else text
        for text, code in zip(plain, codes, strict=True)
    ]
