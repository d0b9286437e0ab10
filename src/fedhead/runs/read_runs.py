"""Search and reading of runs for reports."""

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
from fedhead.core.tree.digest import digest_text
from fedhead.metrics.records import Row, final_rows
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CONFIG, METRICS, damaged

MODULE_WEIGHTS = "those of the given module"  # record of the initial weights, if the model is a module


@dataclass(frozen=True)
class Run:
    """Records of one run, from its folder or from memory, without weights.

    Args:
        folder: Run folder, if any.
        recipe: Recipe; Python objects appear by name only.
        rows: Metrics of the rounds.
        result: Final results; None for an unfinished run.
        environment: Versions, device and executor.
        diverged: Reason of a diverged run, whose numbers became non-finite.
        counts: Training samples by client and class; None before the data was split.
        class_names: Names of the classes, if any.
        client_names: Names of the clients, if any.
        split: Fingerprint of the split (`Federation.fingerprint`), if any.
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
        """Run folder, or "unsaved" without one."""
        return self.folder or Path("unsaved")

    @property
    def stage_rows(self) -> dict[str, Row]:
        """Records by stage name."""
        return (self.result or {}).get("stages") or {}

    @property
    def left_out(self) -> str | None:
        """Site that did not train and tested the global model, in a deployed run with `leave_out_site`."""
        return self.environment.get("leave_out_site")

    @property
    def was_module(self) -> bool:
        """True if a model was given as a module, which starts from its own weights whatever the seed is."""
        return bool(self.environment.get("objects", {}).get("weights") == MODULE_WEIGHTS)

    @property
    def finished(self) -> bool:
        """True if the run is finished."""
        return self.result is not None

    @property
    def status(self) -> str:
        """Status in one word: finished, diverged or unfinished."""
        if self.finished:
            return "finished"
        return "unfinished" if self.diverged is None else "diverged"

    @property
    def state(self) -> str:
        """Status with the reason or the last round."""
        if self.status == "finished":
            return "finished"
        if self.status == "diverged":
            return f"diverged ({self.diverged})"
        return f"unfinished, stopped after round {self.rows[-1]['round'] if self.rows else 0} of {self.recipe.rounds}"

    def last(self, name: str) -> Any:
        """Return the value of a metric at the end, or in the best round if one was kept; None if not measured."""
        return next((row[name] for row in reversed(final_rows(self.rows)) if row.get(name) is not None), None)


class FoundRuns(NamedTuple):
    """Runs below some folders, and unreadable run folders with the reasons."""

    runs: list[Run]
    broken: dict[Path, str]


def find_runs(paths: Sequence[str | Path]) -> FoundRuns:
    """Load runs from their folders, or from folders that contain run folders.

    Damaged folders, and those of another schema, are returned as broken. Empty folders are skipped.

    Raises:
        BadInput: If a folder does not exist, contains something else, or all are empty; if no run can be read, with
            the reason for the first.
    """
    result = FoundRuns([], {})
    for place in run_folders(paths):
        try:
            result.runs.append(load_run(place))
        except BadInput as error:
            result.broken[place] = str(error)
    if not result.runs:
        empty = f"{', '.join(map(str, paths))} contains no run, it is empty: give run folders, such as runs/*"
        raise BadInput(next(iter(result.broken.values()), empty))
    return result


def load_run(place: Path) -> Run:
    """Load the records of one run.

    Raises:
        BadInput: If the run folder is damaged.
    """
    return read_run(RunFolder.open(place))


def read_run(folder: RunFolder) -> Run:
    """Read the records of an open run folder.

    Raises:
        BadInput: If the run folder is damaged.
    """
    rows, result = folder.metrics(), folder.result()
    if result is not None and len(rows) < (trained := result.get("trained_rounds", folder.recipe.rounds)):
        recorded = f"{len(rows)} of {trained} rounds"
        raise damaged(f"{folder.path / METRICS} holds {recorded}, though the run is finished: it was cut or deleted")
    split, environment = folder.split(), folder.environment()
    about_data: tuple[Any, ...] = () if split is None else split[:4]
    if split is None and "sites" in environment:  # the server of real sites does not know their split
        names = environment.get("inputs", {}).get("class_names")
        sites = tuple(environment["sites"])
        pair = digest_text(" ".join([str(folder.recipe.dataset), *sites]), 8)  # runs of the same sites are compared
        about_data = (None, None if names is None else tuple(names), sites, pair)
    return Run(folder.path, folder.recipe, rows, result, environment, folder.diverged, *about_data)


def run_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Return all run folders in the given paths and below them, without duplicates.

    Args:
        paths: Folders, or glob patterns such as "runs/*".

    Raises:
        BadInput: If a folder does not exist, or contains something else.
    """
    folders: dict[Path, Path] = {}
    matches = [sorted(filter(os.path.isdir, glob.glob(str(path)))) or [str(path)] for path in paths]
    for path in map(Path, itertools.chain(*matches)):
        if not path.exists():
            raise BadInput(f"{path} does not exist: give run folders, such as runs/*")
        inner = [path] if (path / CONFIG).exists() else sorted(p.parent for p in path.glob(f"**/{CONFIG}"))
        if not inner and not _empty(path):
            raise BadInput(f"{path} contains no run: give run folders, such as runs/*")
        for place in inner:
            folders.setdefault(place.resolve(), place)
    return list(folders.values())


def code_versions(runs: Iterable[Run]) -> list[str]:
    """Return a line for each user component of which finished runs have several versions."""
    versions: dict[str, dict[str, str]] = {}
    for run in runs:
        for entry in run.environment.get("components", []) if run.finished else []:
            if version := entry.get("digest") if "file" in entry else None:
                versions.setdefault(f"{entry['kind']} {entry['name']}", {}).setdefault(version, str(run.path))
    return [
        f"the runs are of {len(first)} versions of the {component} (one of each: {', '.join(first.values())})"
        for component, first in versions.items()
        if len(first) > 1
    ]


def _empty(path: Path) -> bool:
    return path.is_dir() and not RunFolder.holds_run(path)  # ignores drafts of a killed process
