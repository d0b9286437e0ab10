"""Runs that train alike: one of them trains, and the others begin where its training ended."""

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
    """Return the first of these run folders whose training has ended, whether or not its stages have."""
    for path in paths:
        with suppress(DamagedRun):  # which its own run will name
            if (path / CONFIG).exists() and (path / CHECKPOINT).exists():
                run = RunFolder.open(path)
                number = run.checkpoint.round
                if run.finished or (run.recipe.rounds and number == run.recipe.rounds):
                    return path
    return None


def fork(source: Path, target: Path, recipe: Recipe) -> None:
    """Put a new run where the training of another one ended, so that only its stages are left.

    The recipe's file comes last: without it the folder holds no run yet, and a fork that was killed is made again.

    Args:
        source: Folder of a run that trained by the same recipe, its stages apart.
        target: Folder of the new run.
        recipe: The new run's recipe.

    Raises:
        BadInput: If another process begins the same run.
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
    """Give a checkpoint a second name, since it is replaced and never changed; copy it where that can't be."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        with atomic(target) as draft:
            shutil.copyfile(source, draft)
