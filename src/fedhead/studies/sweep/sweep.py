"""Run a sweep: every cell with every seed, in one folder from which it goes on after any interruption.

sweep.yaml    the axes, what the recipe sets besides, and the digest by which the folder is known
runs/         an ordinary run folder per cell and seed: runs/fedavg-dirichlet-0.1/seed-0
table.csv     one row per cell, and table.json in full
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from fedhead.core.components.parameters import check
from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import Log
from fedhead.core.system.special_files import read_text
from fedhead.executors import select
from fedhead.recipes import components
from fedhead.recipes.run_folder_schema import SWEEP, TABLE_LOCK
from fedhead.recipes.search_paths import FOLDERS
from fedhead.recipes.yaml_text import read_yaml, write_yaml
from fedhead.runs.changed_code import check_runs
from fedhead.runs.folder_lock import locked
from fedhead.runs.run import Compute, check_executor, check_settings
from fedhead.runs.time_budget import Minutes, TimeBudget
from fedhead.runs.training_groups import span, validate
from fedhead.runs.work_sharing import Claims
from fedhead.runs.writable import Unwritable
from fedhead.studies.sweep import sweep_table
from fedhead.studies.sweep.sweep_runs import (
    Bundle,
    SweepCell,
    bundles,
    is_finished,
    run_bundle,
    settings_of,
    sweep_cells,
    trainings,
)
from fedhead.studies.sweep.sweep_table import SweepResult
from fedhead.studies.sweep.tables import Table


class BundleQueue:
    """The bundles that are left to run, as far as the time allows.

    Args:
        left: The bundles, in order.
        budget: The time that there is.
        log: Called with a line about each bundle that is begun, and about each run that fails.
        names: What runs are called, by their folders.
        claims: Which runs other processes have taken.
    """

    def __init__(self, left: Sequence[Bundle], budget: TimeBudget, log: Log, names: Mapping[Path, str], claims: Claims):
        self.log = log
        self.failures: dict[Path, str] = {}
        self._left = list(left)
        self._budget = budget
        self._names = names
        self._claims = claims
        self._total = sum(map(_open, left))
        self._begun = 0

    def next(self) -> Bundle | None:
        """Return the next bundle that is likely to end in time, None where there is none."""
        while self._left and not self._budget.exhausted:
            bundle = self._left.pop(0)
            alike = trainings(bundle)
            alike = alike[: self._budget.how_many_fit([bundle[paths[0]] for paths in alike])]
            free = self._claims.take([paths[0] for paths in alike])  # runs that train alike are taken with the first
            self._total -= sum(_open({path: bundle[path] for path in paths}) for paths in alike if paths[0] not in free)
            alike = [paths for paths in alike if paths[0] in free]
            if alike:  # else perhaps a shorter one still fits, or one that no other process has taken
                chosen = {path: bundle[path] for paths in alike for path in paths}
                count = _open(chosen)
                self.log(f"[{span(self._begun + 1, count)}/{self._total}] {self._describe(chosen)}")
                self._begun += count
                return chosen
        return None

    def _describe(self, bundle: Bundle) -> str:
        names = [self._names[path] for path in bundle if not is_finished(path)]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return "; ".join(names[:2]) + more

    def ended(self, bundle: Bundle, seconds: float, failures: Mapping[Path, str]) -> None:
        """Record what a bundle took and which of its runs failed."""
        count = len(trainings(bundle))
        for recipe in bundle.values():
            self._budget.record(recipe, seconds, count)
        for path, reason in failures.items():
            self.log(f"failed: {self._names[path]}: {reason}")
            self._claims.fail(self._names[path], reason)
        self.failures |= failures

    @property
    def untouched(self) -> int:
        """How many runs were not begun, by this process or another."""
        elsewhere = [
            _open({path: bundle[path] for path in paths})
            for bundle in self._left
            for paths in trainings(bundle)
            if self._claims.is_taken(paths[0])
        ]
        return self._total - self._begun - sum(elsewhere)


class Engine(Protocol):
    """What runs the bundles of a sweep."""

    def device(self, settings: Compute) -> torch.device:
        """Return where runs will train."""
        ...

    def run(self, queue: BundleQueue, out: Path, settings: Compute, together: bool | None) -> None:
        """Run bundles until the queue has none; `out` is the sweep's folder, which holds their folders."""
        ...


class LocalEngine:
    """Runs bundles one after another in this process."""

    def device(self, settings: Compute) -> torch.device:
        """Return where runs will train."""
        return select.device(settings.device)

    def run(self, queue: BundleQueue, out: Path, settings: Compute, together: bool | None) -> None:
        """Run bundles until the queue has none."""
        while (bundle := queue.next()) is not None:
            begin = time.perf_counter()
            failures = run_bundle(bundle, together, settings)
            queue.ended(bundle, time.perf_counter() - begin, failures)


def run_sweep(
    table: Table,
    out: Path | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    shard: tuple[int, int] | None = None,
    claims: Claims | None = None,
    minutes: float | None = None,
    settings: Compute | None = None,
    together: bool | None = None,
    engine: Engine | None = None,
    log: Log = lambda _: None,
) -> SweepResult:
    """Run what is not finished of a sweep, and write table.csv and table.json into its folder.

    A run that fails does not stop the others. Runs that train alike and differ in their stages train once.

    Args:
        table: The sweep, see `sweep_file.plan`.
        out: Its folder; None: one under runs/ that is named after the recipe and the axes.
        seeds: How many seeds, or which; None: the sweep's own.
        shard: Which part of how many to run, (3, 16) for the third of sixteen; None: all.
        claims: Which runs other processes have taken; None: no process runs this sweep beside this one.
        minutes: Begin no run that is not likely to end in this time.
        settings: Device, executor, precision and data folder.
        together: Whether seeds and splits of a method train in one stack; None: on a GPU, where that is fastest.
        engine: What runs the cells; None: this process, one after another.
        log: Called with a line about what begins and what fails.

    Returns:
        The table, of all shards as far as they are.

    Raises:
        BadInput: A cell can't be built, the folder holds something else, or results of an older version of the user's
            own code.
    """
    settings, engine, claims = settings or Compute(), engine or LocalEngine(), claims or Claims()
    planned = plan_runs(
        table, out, seeds=seeds, shard=shard, minutes=minutes, settings=settings, together=together, engine=engine
    )
    place, names, own = planned.folder, planned.names, sum(map(len, planned.bundles))
    open_folder(place, table, planned.cells)
    if shard is not None:
        log(f"shard {shard[0]} of {shard[1]}: {own} of {len(names)} runs")
    if done := own - sum(map(_open, planned.left)):
        log(f"{done} of {own} runs are finished already")
    queue = BundleQueue(planned.left, TimeBudget(minutes), log, names, claims)
    engine.run(queue, place, settings, together)
    failures = {**{names[path]: reason for path, reason in queue.failures.items()}, **claims.failures()}
    with locked(place / TABLE_LOCK):  # of shards that end at once, the last to write has read what all have finished
        result = sweep_table.collect(table.title, place, table.axes(), planned.cells, failures, queue.untouched)
        sweep_table.write(result)
    return result


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is to run."""

    folder: Path
    cells: Sequence[SweepCell]
    names: Mapping[Path, str]  # what runs are called, by their folders
    bundles: Sequence[Bundle]  # of this shard
    left: Sequence[Bundle]  # what is not finished of them


def plan_runs(
    table: Table,
    out: Path | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    shard: tuple[int, int] | None = None,
    minutes: float | None = None,
    settings: Compute | None = None,
    together: bool | None = None,
    engine: Engine | None = None,
) -> SweepPlan:
    """Return what `run_sweep` with the same arguments would run; nothing is written.

    Raises:
        BadInput: For whatever `run_sweep` would refuse before its first run.
    """
    settings, engine = settings or Compute(), engine or LocalEngine()
    check("minutes", minutes, Minutes | None)
    check_settings(settings, together, table.folders)
    device = engine.device(settings)
    check_executor(settings, device)
    cells = sweep_cells(table, seeds)
    validate({cell.name: next(iter(cell.runs.values())) for cell in cells})
    place = out or default_folder(table, cells)
    check_folder(place, table, cells)
    names = {place / path: f"{cell.name}, seed {one.seed}" for cell in cells for path, one in cell.runs.items()}
    runs = {place / path: recipe for cell in cells for path, recipe in cell.runs.items()}
    in_order = dict(sorted(runs.items(), key=lambda entry: entry[1].seed))  # a sweep that is stopped has every cell
    every = bundles(in_order, together, device)
    if shard is not None:
        every = every[shard[0] - 1 :: shard[1]]
    left = [unfinished for bundle in every if (unfinished := _unfinished(bundle))]
    check_runs(place, runs, more=bool(left), allow=settings.allow_changed_code)
    return SweepPlan(place, cells, names, every, left)


def _unfinished(bundle: Bundle) -> Bundle:
    """Return the runs that are left, with finished ones that train like them and can spare them the training."""
    alike = [paths for paths in trainings(bundle) if not all(map(is_finished, paths))]
    return {path: bundle[path] for paths in alike for path in paths}


def _open(bundle: Bundle) -> int:
    """Return how many runs of a bundle are not finished."""
    return sum(not is_finished(path) for path in bundle)


def read_shard(text: str) -> tuple[int, int]:
    """Read which part of how many, from 1 on.

    Raises:
        BadInput: It is not of the form 3/16, or there is no such part.

    >>> read_shard("3/16")
    (3, 16)
    """
    match = re.fullmatch(r"\s*(\d{1,9})/(\d{1,9})\s*", text, re.ASCII) if isinstance(text, str) else None
    if match is None:
        raise BadInput(f"--shard {text!r}: write which of how many, such as 3/16")
    number, count = int(match[1]), int(match[2])
    if not count:
        raise BadInput(f"--shard {text}: there must be at least one part, as in 1/1; write which of how many")
    if not 1 <= number <= count:
        raise BadInput(f"--shard {text}: there is no such shard; the first is 1/{count}, the last {count}/{count}")
    return number, count


# -- the folder -------------------------------------------------------------------------------------
def default_folder(table: Table, cells: Sequence[SweepCell]) -> Path:
    """Return the folder of a sweep that names none: the same command finds the same one."""
    return Path("runs") / f"sweep-{table.name}-{digest(cells)[:6]}"


def digest(cells: Sequence[SweepCell]) -> str:
    """Return what identifies a sweep: a hash of its cells' settings; the seeds do not count."""
    settings = {cell.name: settings_of(next(iter(cell.runs.values()))) for cell in cells}
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()


def open_folder(out: Path, table: Table, cells: Sequence[SweepCell]) -> None:
    """Write a sweep's file into its folder, or check that the folder's is the same.

    Several processes may do so at once, each of them a shard of the sweep.

    Raises:
        BadInput: The folder holds another sweep, or something else.
    """
    if check_folder(out, table, cells):
        return
    usual = Counter(tuple(one.seed for one in cell.runs.values()) for cell in cells).most_common(1)[0][0]
    folders = components.folders_from(out, (next(iter(cell.runs.values())) for cell in cells))
    named = {FOLDERS: folders} if folders else {}
    content = {"title": table.title, "digest": digest(cells), **named, **table.content, "seeds": list(usual)}
    try:
        out.mkdir(parents=True, exist_ok=True)
        with atomic(out / SWEEP) as draft:
            draft.write_text(write_yaml(content), encoding="utf-8")
    except OSError as error:
        raise Unwritable(f"{out} can't be written to: {error.strerror}; select another folder with --out") from error
    check_folder(out, table, cells)  # another process may have been faster


def check_folder(out: Path, table: Table, cells: Sequence[SweepCell]) -> bool:
    """Say whether a folder holds a sweep already; one that is empty or missing does not.

    Raises:
        BadInput: It holds another sweep, or something else.
    """
    try:
        held = sorted(path.name for path in out.iterdir() if not path.name.startswith(f".{SWEEP}"))
    except FileNotFoundError:
        held = []
    except OSError as error:
        raise BadInput(f"{out} can't be read: {error.strerror}; select another folder with --out") from error
    if not held:
        return False
    if not (out / SWEEP).exists():
        raise BadInput(f"{out} is not empty and holds no sweep (it has {held[0]}): select another folder with --out")
    stored = read_yaml(read_text(out / SWEEP), str(out / SWEEP))
    if not isinstance(stored, dict) or not isinstance(stored.get("digest"), str):
        raise BadInput(f"{out / SWEEP} is no sweep's file: it has no digest; select another folder with --out")
    if stored["digest"] != digest(cells):
        raise BadInput(
            f"{out} holds another sweep: {_difference(_settings(stored), _settings(table.content))}; repeat it as "
            f"{out / SWEEP} has it, or select another folder with --out"
        )
    return True


def _settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a sweep's content decides; what all cells have is together, wherever it was written."""
    rules = content.get("rules", [])
    common = dict(content.get("base", {}))
    for rule in rules:
        common |= rule.get("set", {}) if not rule["when"] else {}
    axes, others = content.get("axes", {}), [rule for rule in rules if rule["when"]]
    return {"axes": axes, "settings": common, "rules": others, "skip": content.get("skip", [])}


def _difference(before: Any, now: Any, name: str = "sweep") -> str:
    """Say where two contents differ first, by the innermost name.

    >>> _difference({"settings": {"rounds": 2}}, {"settings": {"rounds": 3}})
    'rounds was 2 and is now 3'
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in (*before, *now):
            if key not in before:
                return f"there is no {key} in its {name}"
            if key not in now:
                return f"{key} in its {name} is not given here"
            if before[key] != now[key]:
                return _difference(before[key], now[key], name if key == "set" else str(key))
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for old, new in zip(before, now, strict=True):
            if old != new:
                return _difference(old, new, name)
    return f"{name} was {before} and is now {now}"
