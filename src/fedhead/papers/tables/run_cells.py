"""Measure the cells of paper tables: cells that train alike share one run, and their stages start from its end."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput
from fedhead.core.system.failures import describe_error, raise_if_fatal
from fedhead.core.system.log import Log
from fedhead.core.tree.digest import digest_json
from fedhead.engine.experiment.compute import Compute
from fedhead.executors import select
from fedhead.metrics.averages import mean_and_deviation
from fedhead.papers.tables.cell_names import name_cells
from fedhead.papers.tables.paper_tables import PaperCell, Scale
from fedhead.papers.tables.results import Measurement, Results, all_settings, stage_recipe, stage_settings, value_at
from fedhead.recipes import experiment as build
from fedhead.recipes.recipe import Recipe
from fedhead.runs import environment, reopen
from fedhead.runs.run_folder import RunFolder
from fedhead.studies.claims import Claims
from fedhead.studies.engines import LocalEngine
from fedhead.studies.queue import RunQueue
from fedhead.studies.time_budget import TimeBudget
from fedhead.studies.training import train
from fedhead.studies.writable import check_writable


@dataclass(frozen=True)
class Repetition:
    """A cell to be measured with one seed on one split."""

    table: str
    cell: PaperCell
    digest: str
    scale: Scale
    recipe: Recipe  # of its training

    @property
    def split(self) -> int:
        """The seed of the partition."""
        return self.recipe.seed if self.recipe.partition_seed is None else self.recipe.partition_seed

    def found(self, results: Results) -> Measurement | None:
        """Return its row, if it was measured already."""
        return results.find(self.digest, self.split, self.recipe.seed)


@dataclass(frozen=True)
class MeasureContext:
    """Options of measuring cells, and where their results go."""

    out: Path  # the folder of the run folders
    results: Results = field(default_factory=Results)
    settings: Compute = field(default_factory=Compute)
    budget: TimeBudget = field(default_factory=TimeBudget)
    log: Log = lambda _: None
    shard: tuple[int, int] | None = None  # which part of how many to run, (3, 16) for the third of sixteen
    claims: Claims = field(default_factory=Claims)  # which runs other processes of this command have taken


@dataclass(frozen=True)
class MeasureResult:
    """Outcome of measurements."""

    left: int  # runs that were not run, for lack of time or because they failed
    failures: Mapping[str, str]  # why runs failed, by what each is called


@dataclass(frozen=True)
class TableJob:
    """A training, and what is to be measured of it."""

    folder: Path
    recipe: Recipe
    context: MeasureContext
    repetitions: list[Repetition] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The cells, and what was drawn for them."""
        cells = [" ".join([r.cell.name, *r.cell.overrides]) for r in self.repetitions]
        drawn = f"seed {self.recipe.seed}"
        if self.recipe.partition_seed is not None:
            drawn += f", split {self.recipe.partition_seed}"
        return f"{' and '.join(dict.fromkeys(cells))}, {drawn}"

    def describe(self) -> str:
        """Return what is trained, and for which cells."""
        recipe, cells = self.recipe, name_cells((r.table, r.cell) for r in self.repetitions)
        split = "" if recipe.partition_seed is None else f" split {recipe.partition_seed}"
        return f"{recipe.dataset} {recipe.partition} {recipe.method} seed {recipe.seed}{split}: {cells}"

    def unfinished(self) -> int:
        """Return 1: a job is made for what was not measured yet."""
        return 1

    def run(self) -> dict[str, str]:
        """Train, run the stages, and record each result as soon as it is known; return why it failed."""
        finished = _is_finished(self.folder)
        begin = time.perf_counter()
        try:
            train(self.folder, self.recipe, self.context.settings)
        except Exception as error:  # a user's own code may raise anything
            raise_if_fatal(error)
            return {self.name: describe_error(error)}
        seconds = None if finished else time.perf_counter() - begin
        failures = _measure_stages(self, seconds)
        return {self.name: describe_error(failures[0])} if failures else {}


def measure_all(repetitions: Sequence[Repetition], context: MeasureContext) -> MeasureResult:
    """Measure what was not measured yet, as far as time allows; a run that fails is named and the others go on."""
    jobs = _jobs(repetitions, context)
    if context.shard is not None:
        number, count = context.shard  # of all trainings: whether they are measured already does not matter
        part = list(dict.fromkeys(folder(context.out, r.recipe) for r in repetitions))[number - 1 :: count]
        jobs = [job for job in jobs if job.folder in part]
    if context.claims.over:
        left = enter_finished([r for job in jobs for r in job.repetitions], context)
        return MeasureResult(len({folder(context.out, r.recipe) for r in left}), {})
    if jobs:
        context.results.check_writable()
        check_writable(context.out, "runs", "--out")
    queue = RunQueue(jobs, context.budget, context.claims, context.log)
    LocalEngine().run(queue)
    if queue.left:
        context.log(f"the time is up: {queue.left} of {len(jobs)} runs are left")
    return MeasureResult(queue.left + len(queue.failures), queue.failures)


def enter_finished(repetitions: Sequence[Repetition], context: MeasureContext) -> list[Repetition]:
    """Enter what finished runs hold, and return what is not measured yet.

    A run that can't be read is left to be measured, where it is named.
    """
    missing: list[Repetition] = []
    for repetition in repetitions:
        path = folder(context.out, repetition.recipe)
        with suppress(BadInput):
            if repetition.found(context.results) is None and _is_finished(path) and _stage_is_done(repetition, path):
                context.results.add(_measurement(repetition, path, None))
        if repetition.found(context.results) is None:
            missing.append(repetition)
    return missing


def _stage_is_done(repetition: Repetition, path: Path) -> bool:
    if repetition.cell.stage is None:
        return True
    settings = stage_settings(repetition.cell, repetition.recipe)
    return reopen.load_stage_result(reopen.stage_file(path, repetition.cell.stage, settings)) is not None


def _jobs(repetitions: Sequence[Repetition], context: MeasureContext) -> list[TableJob]:
    """Return the trainings behind what was not measured yet.

    What was measured under another cell's name is entered under this one's.
    """
    jobs: dict[Path, TableJob] = {}
    seen: dict[Path, tuple[Recipe, float]] = {}  # what trainings took with their stages
    device = environment.device_name(select.device(context.settings.device))
    for repetition in repetitions:
        cell, recipe = repetition.cell, repetition.recipe
        path, row = folder(context.out, recipe), repetition.found(context.results)
        if row is None:
            jobs.setdefault(path, TableJob(path, recipe, context)).repetitions.append(repetition)
            continue
        context.results.add(replace(row, table=repetition.table, cell=cell.name, overrides=" ".join(cell.overrides)))
        if row.training_seconds is not None and row.device == device:
            _, seconds = seen.get(path, (recipe, row.training_seconds))
            seen[path] = recipe, seconds + (row.stage_seconds or 0)
    for recipe, seconds in seen.values():
        context.budget.record(recipe, seconds)
    return list(jobs.values())


def folder(out: Path, recipe: Recipe) -> Path:
    """Return the run folder of a training: one for cells that train alike, another where a default changes."""
    keys = {k: v for k, v in all_settings(recipe).items() if k != "seed"}
    code = digest_json(keys, 4)
    words = re.sub(r"[^a-z0-9.]+", "-", f"{recipe.dataset}-{recipe.partition}-{recipe.method}".lower())
    return out / "runs" / f"{words.strip('-')}-{code}" / f"seed-{recipe.seed}"


def _is_finished(path: Path) -> bool:
    try:
        return RunFolder.holds_run(path) and RunFolder.open(path).finished
    except BadInput:  # a damaged folder, which its own run will name
        return False


def _measure_stages(job: TableJob, seconds: float | None) -> list[Exception]:
    """Record the results of a training and of the stages that its cells lack; returns what failed."""
    trained: reopen.Trained | None = None
    failures = list[Exception]()
    for repetition in sorted(job.repetitions, key=lambda r: r.cell.stage is not None):
        cell, settings = repetition.cell, job.context.settings
        try:
            if cell.stage is not None:
                values = stage_settings(cell, job.recipe)
                file = reopen.stage_file(job.folder, cell.stage, values)
                if reopen.load_stage_result(file) is None:
                    trained = trained or reopen.reopen(job.folder, settings.data, settings.device)
                    _, (stage,) = build.algorithms(stage_recipe(cell, job.recipe))
                    reopen.save_stage_result(file, cell.stage, values, trained.run(stage))
            job.context.results.add(_measurement(repetition, job.folder, seconds))
        except Exception as error:  # a user's own code may raise anything
            raise_if_fatal(error)
            failures.append(error)
    return failures


# -- rows of results ------------------------------------------------------------------------------------------
def _measurement(repetition: Repetition, path: Path, seconds: float | None) -> Measurement:
    """Return the row of a cell from its run folder; `seconds` are the training's, None if it ended earlier."""
    cell, run = repetition.cell, RunFolder.open(path)
    trained, about = run.result() or {}, run.environment()
    result: Mapping[str, Any] = trained
    if cell.stage is not None:
        settings = stage_settings(cell, repetition.recipe)
        result = reopen.load_stage_result(reopen.stage_file(path, cell.stage, settings)) or {}
    seconds = _recorded_seconds(trained) if seconds is None else seconds
    return Measurement(
        table=repetition.table,
        cell=cell.name,
        overrides=" ".join(cell.overrides),
        digest=repetition.digest,
        scale=repetition.scale,
        split=repetition.split,
        seed=repetition.recipe.seed,
        metric=cell.metric,
        value=value_at(result, cell.value),
        stage=cell.stage or "none",
        accuracy=result.get("accuracy"),
        accuracy_mean=result.get("accuracy_mean"),
        personal=result.get("personal"),
        client_deviation=mean_and_deviation(result.get("clients") or [])[1],
        bytes_up=result.get("bytes_up"),
        bytes_down=result.get("bytes_down"),
        training_seconds=None if seconds is None else round(seconds, 2),
        stage_seconds=None if cell.stage is None else result.get("seconds"),
        together=1,
        executor=str(trained.get("executor", "")),
        precision=str(about.get("precision", "")),
        device=str(about.get("device_name") or ""),
        version=str((about.get("versions") or {}).get("fedhead") or ""),
        commit=str(about.get("commit") or ""),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _recorded_seconds(trained: Mapping[str, Any]) -> float | None:
    """Return the recorded time of a run that ended in an earlier process."""
    seconds = trained.get("seconds")
    return None if seconds is None else float(seconds) + float(trained.get("preparing") or 0)
