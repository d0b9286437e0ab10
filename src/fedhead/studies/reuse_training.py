"""Shared training: of runs that differ only in their stages, one trains and the others copy its state."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fedhead.core.system.atomic_file import atomic
from fedhead.recipes.recipe import Recipe
from fedhead.runs.folder_lock import lock_folder
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT, CONFIG, INITIAL, METRICS, PARTITION, DamagedRun


def trained(paths: Iterable[Path]) -> Path | None:
    """Return the first of these run folders whose training has finished; its stages may be pending."""
    for path in paths:
        with suppress(DamagedRun):  # reported by that run itself
            if (path / CONFIG).exists() and (path / CHECKPOINT).exists():
                run = RunFolder.open(path)
                number = run.checkpoint.round
                if run.finished or (run.recipe.rounds and number == run.recipe.rounds):
                    return path
    return None


def fork(source: Path, target: Path, recipe: Recipe) -> None:
    """Create a run from the trained state of another one, so that only its stages are left.

    The recipe file is written last. A folder without it holds no run, so a killed fork is repeated.

    Args:
        source: Folder of a run whose recipe differs only in its stages.
        target: Folder of the new run.
        recipe: Recipe of the new run.

    Raises:
        BadInput: If another process starts the same run.
    """
    target.mkdir(parents=True, exist_ok=True)
    with lock_folder(target):
        if (target / CONFIG).exists():
            return
        for name in (PARTITION, METRICS, INITIAL):
            if (source / name).exists():
                with atomic(target / name) as draft:
                    shutil.copyfile(source / name, draft)
        _link(source / CHECKPOINT, target / CHECKPOINT)
        environment = RunFolder.open(source).environment()
        RunFolder(target, recipe).write_new({k: v for k, v in environment.items() if k != "extended"})


def _link(source: Path, target: Path) -> None:
    """Hard-link a checkpoint, which is only ever replaced; copy it where links are not supported."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        with atomic(target) as draft:
            shutil.copyfile(source, draft)
