"""Runs of a sweep on a Ray worker, in a temporary folder whose changes are streamed back.

The machines need no shared disk. When a worker is lost, another one resumes its runs from the files in the sweep's
folder.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.recipe import Recipe
from fedhead.studies.run_transfer import ChangedFiles, Files, place
from fedhead.studies.sweep.sweep_runs import run_alike

EVERY = 1.0  # seconds between two checks for changed files


def run_streaming(
    name: str,
    recipes: Mapping[str, Recipe],
    contents: Mapping[str, Files],
    compute: Compute,
) -> Iterator[tuple[dict[str, Files], dict[str, str]]]:
    """Run a job of a sweep and yield the changed files of its run folders meanwhile.

    Args:
        name: Name of the temporary folder; a leftover of a lost worker is removed.
        recipes: Recipes by folder name.
        contents: Existing files of the folders.
        compute: Device, executor and precision.

    Yields:
        Changed files by folder, and reasons of failed runs.
    """
    root = Path(tempfile.gettempdir()) / name
    shutil.rmtree(root, ignore_errors=True)
    try:
        for folder, files in contents.items():
            place(files, root / folder)
        changes = {folder: ChangedFiles(root / folder) for folder in recipes}
        failures: dict[Path, str] = {}
        errors: list[BaseException] = []

        def run() -> None:
            try:
                runs = {root / folder: recipe for folder, recipe in recipes.items()}
                failures.update(run_alike(runs, compute))
            except BaseException as error:  # raised again in the task's main thread
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        alive = True
        while alive:
            thread.join(EVERY)
            alive = thread.is_alive()
            changed = {folder: files for folder, change in changes.items() if (files := change.take())}
            if changed:
                yield changed, {}
        if errors:
            raise errors[0]
        yield {}, {path.relative_to(root).as_posix(): reason for path, reason in failures.items()}
    finally:
        shutil.rmtree(root, ignore_errors=True)
