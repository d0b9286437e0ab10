"""Sweeps: every cell with every seed, in one folder from which an interrupted sweep resumes.

sweep.yaml    the axes, the recipe's other keys, and a digest that identifies the sweep
runs/         an ordinary run folder per cell and seed: runs/fedavg-dirichlet-0.1/seed-0
table.csv     one row per cell; table.json has all values
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import Log
from fedhead.core.system.special_files import read_text
from fedhead.core.system.yaml_text import read_yaml, write_yaml
from fedhead.core.tree.digest import digest_json
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes import components
from fedhead.recipes.differences import describe, differences
from fedhead.recipes.search_paths import FOLDERS
from fedhead.runs.folder_lock import lock_folder
from fedhead.runs.recorded_code import check_runs
from fedhead.runs.run import check_compute
from fedhead.runs.run_folder_schema import SWEEP, TABLE_LOCK
from fedhead.studies.engines import LocalEngine
from fedhead.studies.queue import RunQueue
from fedhead.studies.run_job import RunJob, trainings
from fedhead.studies.sweep import sweep_table
from fedhead.studies.sweep.sweep_runs import SweepCell, settings_of, sweep_cells
from fedhead.studies.sweep.sweep_table import SweepResult
from fedhead.studies.sweep.tables import Table
from fedhead.studies.time_budget import TimeBudget
from fedhead.studies.training import validate
from fedhead.studies.writable import Unwritable


def run_sweep(
    table: Table,
    out: Path | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    shard: tuple[int, int] | None = None,
    minutes: float | None = None,
    compute: Compute | None = None,
    engine: LocalEngine | None = None,
    log: Log = lambda _: None,
) -> SweepResult:
    """Run the unfinished runs of a sweep and write table.csv and table.json into its folder.

    A failed run does not stop the others. Runs that differ only in their stages share one training.

    Args:
        table: Sweep, see `sweep_file.plan`.
        out: Folder of the sweep; None: one under runs/ that is named after the recipe and the axes.
        seeds: Number or list of seeds; None: the seeds of the sweep.
        shard: Shard to run and number of shards, (3, 16) for the third of sixteen; None: all runs.
        minutes: Time after which no run is started.
        compute: Device, executor, precision and data folder.
        engine: LocalEngine that runs the jobs; None: sequentially in this process.
        log: Called with a line for each start and failure.

    Returns:
        The table so far, including the results of other shards.

    Raises:
        BadInput: A cell can't be built, the folder holds something else or results of an older version of the user's
            code, or another process runs the sweep.
    """
    compute, engine = compute or Compute(), engine or LocalEngine()
    budget = TimeBudget(minutes)
    planned = plan_runs(table, out, seeds=seeds, shard=shard, compute=compute, engine=engine)
    place, total = planned.folder, sum(len(job.runs) for job in planned.jobs)
    open_folder(place, table, planned.cells)
    queue = RunQueue(planned.left, budget, log)
    with lock_folder(place) if shard is None else nullcontext():
        if shard is not None:
            log(f"shard {shard[0]} of {shard[1]}: {total} of {planned.count} runs")
        if done := total - sum(len(job.unfinished()) for job in planned.jobs):
            log(f"{done} of {total} runs are finished already")
        engine.run(queue)
    with FileLock(place / TABLE_LOCK):  # shards may end together: the last writer sees all results
        result = sweep_table.collect(table.title, place, table.axes(), planned.cells, queue.failures, queue.left)
        sweep_table.write(result)
    return result


@dataclass(frozen=True)
class SweepPlan:
    """Plan of a sweep."""

    folder: Path
    cells: Sequence[SweepCell]
    count: int  # runs of all shards
    jobs: Sequence[RunJob]  # of this shard
    left: Sequence[RunJob]  # unfinished jobs


def plan_runs(
    table: Table,
    out: Path | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    shard: tuple[int, int] | None = None,
    compute: Compute | None = None,
    engine: LocalEngine | None = None,
) -> SweepPlan:
    """Plan the runs of `run_sweep` with the same arguments, without writing files.

    Raises:
        BadInput: For every error that `run_sweep` raises before its first run.
    """
    compute, engine = compute or Compute(), engine or LocalEngine()
    check_compute(compute, table.folders, engine.device(compute))
    cells = sweep_cells(table, seeds)
    validate({cell.name: next(iter(cell.runs.values())) for cell in cells})
    place = out or default_folder(table, cells)
    check_folder(place, table, cells)
    names = {place / path: f"{cell.name}, seed {recipe.seed}" for cell in cells for path, recipe in cell.runs.items()}
    runs = {place / path: recipe for cell in cells for path, recipe in cell.runs.items()}
    in_order = dict(sorted(runs.items(), key=lambda entry: entry[1].seed))  # a stopped sweep covers every cell
    jobs = [RunJob(alike, names, compute) for alike in trainings(in_order)]
    if shard is not None:
        jobs = jobs[shard[0] - 1 :: shard[1]]
    left = [job for job in jobs if job.unfinished()]
    check_runs(place, runs, more=bool(left), allow=compute.allow_changed_code)
    return SweepPlan(place, cells, len(runs), jobs, left)


# -- the folder -------------------------------------------------------------------------------------
def default_folder(table: Table, cells: Sequence[SweepCell]) -> Path:
    """Return the default folder of a sweep, which is the same for the same command."""
    return Path("runs") / f"sweep-{table.name}-{digest(cells)[:6]}"


def digest(cells: Sequence[SweepCell]) -> str:
    """Return a hash of all cells' recipe keys except the seeds."""
    keys = {cell.name: settings_of(next(iter(cell.runs.values()))) for cell in cells}
    return digest_json(keys)


def open_folder(out: Path, table: Table, cells: Sequence[SweepCell]) -> None:
    """Write a sweep's file into its folder, or check the existing one.

    Safe for concurrent processes, such as the shards of a sweep.

    Raises:
        BadInput: The folder holds another sweep, or something else.
    """
    if check_folder(out, table, cells):
        return
    seeds = Counter(tuple(recipe.seed for recipe in cell.runs.values()) for cell in cells).most_common(1)[0][0]
    folders = components.folders_from(out, (next(iter(cell.runs.values())) for cell in cells))
    search_path = {FOLDERS: folders} if folders else {}
    content = {"title": table.title, "digest": digest(cells), **search_path, **table.content, "seeds": list(seeds)}
    try:
        out.mkdir(parents=True, exist_ok=True)
        with atomic(out / SWEEP) as draft:
            draft.write_text(write_yaml(content), encoding="utf-8")
    except OSError as error:
        raise Unwritable(f"{out} can't be written to: {error.strerror}; select another folder with --out") from error
    check_folder(out, table, cells)  # another process may have written it first


def check_folder(out: Path, table: Table, cells: Sequence[SweepCell]) -> bool:
    """Return whether a folder already holds this sweep; False if it is empty or missing.

    Raises:
        BadInput: The folder holds another sweep, or something else.
    """
    try:
        names = sorted(path.name for path in out.iterdir() if not path.name.startswith(f".{SWEEP}"))
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise BadInput(f"{out} can't be read: {error.strerror}; select another folder with --out") from error
    if not names:
        return False
    if not (out / SWEEP).exists():
        raise BadInput(f"{out} is not empty and holds no sweep (it has {names[0]}): select another folder with --out")
    stored = read_yaml(read_text(out / SWEEP), str(out / SWEEP))
    if not isinstance(stored, dict) or not isinstance(stored.get("digest"), str):
        raise BadInput(f"{out / SWEEP} is no sweep's file: it has no digest; select another folder with --out")
    if stored["digest"] != digest(cells):
        changed = describe(differences(_settings(stored), _settings(table.content)))
        raise BadInput(
            f"{out} holds another sweep: {changed}; repeat it as {out / SWEEP} has it, or select another folder with "
            "--out"
        )
    return True


def _settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe keys of a sweep, with those of `base` and of unconditional rules merged."""
    rules = content.get("rules", [])
    settings = dict(content.get("base", {}))
    for rule in rules:
        settings |= rule.get("set", {}) if not rule["when"] else {}
    for axis, choices in content.get("axes", {}).items():
        settings |= {f"{axis} {choice}": layer for choice, layer in choices.items()}
    return settings | {"rules": [rule for rule in rules if rule["when"]], "skip": content.get("skip", [])}
