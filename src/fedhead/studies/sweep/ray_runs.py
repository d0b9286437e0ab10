"""Runs of a sweep on a Ray worker: in a folder of its machine, with the changes streamed back.

The machines need no common disk. When a worker is lost, its runs go on elsewhere from what the sweep's folder has of
them.
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

EVERY = 1.0  # seconds between two looks at what has changed


def run_streaming(
    name: str,
    recipes: Mapping[str, Recipe],
    contents: Mapping[str, Files],
    settings: Compute,
) -> Iterator[tuple[dict[str, Files], dict[str, str]]]:
    """Run a job of a sweep, and yield what has changed in its run folders while it does.

    Args:
        name: Name of the folder to work in; one that a lost worker left on this machine is removed.
        recipes: The runs, by the names of their folders.
        contents: The files that the folders have already.
        settings: How and where to compute.

    Yields:
        Changed files by folder, and why runs failed.
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
                failures.update(run_alike(runs, settings))
            except BaseException as error:  # raised below, in the task's own thread
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
