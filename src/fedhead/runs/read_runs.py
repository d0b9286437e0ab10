"""The runs that a report is about: found below folders and read, broken ones named."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput
from fedhead.metrics.records import Row, final_rows
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CONFIG, METRICS, damaged


@dataclass(frozen=True)
class Run:
    """The records of one run, from its folder or from memory; without weights.

    Args:
        folder: The run folder, if the run has one.
        recipe: The recipe; components that were given as objects are named.
        rows: The metrics of its rounds.
        result: The final results; None if the run is not finished.
        environment: What it ran on.
        diverged: Why it has no result, if its numbers left the finite ones.
        counts: Training samples by client and class; None if it was stopped before it split its data.
        class_names: Names of the classes, if they have such.
        client_names: Names of the clients, if they have such.
        split: Fingerprint of the split (`Federation.fingerprint`), if the data was split.
    """

    folder: Path | None
    recipe: Recipe
    rows: list[Row]
    result: Row | None
    environment: Mapping[str, Any] = field(default_factory=dict)
    diverged: str | None = None
    counts: NDArray[np.int64] | None = None
    class_names: tuple[str, ...] | None = None
    client_names: tuple[str, ...] | None = None
    split: str | None = None

    @property
    def path(self) -> Path:
        """The run folder; "unsaved" if there is none."""
        return self.folder or Path("unsaved")

    @property
    def stage_rows(self) -> dict[str, Row]:
        """The records of the stages, by name."""
        return (self.result or {}).get("stages") or {}

    @property
    def finished(self) -> bool:
        """True if the run came to its end."""
        return self.result is not None

    @property
    def status(self) -> str:
        """The status in one word: finished, diverged or unfinished."""
        if self.finished:
            return "finished"
        return "unfinished" if self.diverged is None else "diverged"

    @property
    def state(self) -> str:
        """The status, with the reason or the last round."""
        if self.status == "finished":
            return "finished"
        if self.status == "diverged":
            return f"diverged ({self.diverged})"
        return f"unfinished, stopped after round {self.rows[-1]['round'] if self.rows else 0} of {self.recipe.rounds}"

    def last(self, name: str) -> Any:
        """Return the value of a metric at the end, or in the round that was kept; None if it was never measured."""
        return next((row[name] for row in reversed(final_rows(self.rows)) if row.get(name) is not None), None)


class FoundRuns(NamedTuple):
    """The runs below some folders, and the run folders that can't be read, with why."""

    runs: list[Run]
    broken: dict[Path, str]


def find_runs(paths: Sequence[str | Path]) -> FoundRuns:
    """Load runs from their folders; a folder that contains run folders stands for all of them.

    One that is damaged, or of another schema, is named. Empty folders are passed over.

    Raises:
        BadInput: If a folder does not exist, or contains something but no run, or all are empty; if no run at all can
            be read, with what is wrong with the first.
    """
    found = FoundRuns([], {})
    for place in run_folders(paths):
        try:
            found.runs.append(load_run(place))
        except BadInput as error:
            found.broken[place] = str(error)
    if not found.runs:
        empty = f"{', '.join(map(str, paths))} contains no run, it is empty: give run folders, such as runs/*"
        raise BadInput(next(iter(found.broken.values()), empty))
    return found


def load_run(place: Path) -> Run:
    """Load one run, with everything of it that a report shows.

    Raises:
        BadInput: If it is damaged.
    """
    return read_run(RunFolder.open(place))


def read_run(folder: RunFolder) -> Run:
    """Read the records of an open run folder.

    Raises:
        BadInput: If it is damaged.
    """
    rows, result = folder.metrics(), folder.result()
    if result is not None and len(rows) < (trained := result.get("trained_rounds", folder.recipe.rounds)):
        there = f"{len(rows)} of {trained} rounds"
        raise damaged(f"{folder.path / METRICS} holds {there}, though the run is finished: it was cut or deleted")
    split = folder.split()
    about_data = () if split is None else split[:4]
    return Run(folder.path, folder.recipe, rows, result, folder.environment(), folder.diverged, *about_data)


def run_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Return the run folders among those given and below them, each once.

    Args:
        paths: Folders, or patterns such as "runs/*" that stand for the folders that match.

    Raises:
        BadInput: If a folder does not exist, or contains something but no run.
    """
    found: dict[Path, Path] = {}
    matches = [sorted(filter(os.path.isdir, glob.glob(str(path)))) or [str(path)] for path in paths]
    for path in map(Path, itertools.chain(*matches)):
        if not path.exists():
            raise BadInput(f"{path} does not exist: give run folders, such as runs/*")
        inner = [path] if (path / CONFIG).exists() else sorted(p.parent for p in path.glob(f"**/{CONFIG}"))
        if not inner and not _empty(path):
            raise BadInput(f"{path} contains no run: give run folders, such as runs/*")
        for place in inner:
            found.setdefault(place.resolve(), place)
    return list(found.values())


def code_versions(runs: Iterable[Run]) -> list[str]:
    """Return a line for each component of the user's own of which finished runs have several versions."""
    found: dict[str, dict[str, str]] = {}
    for run in runs:
        for entry in run.environment.get("components", []) if run.finished else []:
            if version := entry.get("digest") if "file" in entry else None:
                found.setdefault(f"{entry['kind']} {entry['name']}", {}).setdefault(version, str(run.path))
    return [
        f"the runs are of {len(first)} versions of the {component} (one of each: {', '.join(first.values())})"
        for component, first in found.items()
        if len(first) > 1
    ]


def _empty(path: Path) -> bool:
    return path.is_dir() and not RunFolder.holds_run(path)  # a killed process may leave a draft in it
