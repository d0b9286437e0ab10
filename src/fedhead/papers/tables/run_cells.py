"""Measure the cells of tables: which cells share a training, which trainings run together, what is recorded of each."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import Log
from fedhead.data.sources.dataset_cache import read_once
from fedhead.executors import select
from fedhead.papers.tables.cell_names import name_cells
from fedhead.papers.tables.results import Measurement, Results, all_settings, stage_recipe, stage_settings, value_at
from fedhead.recipes import build
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.run_folder_schema import DamagedRun
from fedhead.runs import environment, reopen
from fedhead.runs.failures import describe_error, raise_if_fatal
from fedhead.runs.run import Compute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.time_budget import TimeBudget
from fedhead.runs.training_groups import begun_with, describe, group_trainings, span, train
from fedhead.runs.work_sharing import Claims
from fedhead.runs.writable import check_writable
from fedhead.studies.sweep.tables import Cell, Scale


@dataclass(frozen=True)
class Repetition:
    """A cell to be measured with one seed on one split."""

    table: str
    cell: Cell
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
    """How and where cells are measured, and where their results go."""

    out: Path  # the folder of the run folders
    results: Results = field(default_factory=Results)
    settings: Compute = field(default_factory=Compute)
    budget: TimeBudget = field(default_factory=TimeBudget)
    together: bool | None = None  # train seeds and splits of a method in one stack; None: on a GPU where that is best
    log: Log = lambda _: None
    # whether cells of several tables are measured: the first run that fails says little of the others then
    several_tables: bool = False
    shard: tuple[int, int] | None = None  # which part of how many to run, (3, 16) for the third of sixteen
    claims: Claims = field(default_factory=Claims)  # which runs other processes of this command have taken


@dataclass(frozen=True)
class Training:
    """A training, and what is to be measured of it."""

    recipe: Recipe
    repetitions: list[Repetition]


@dataclass(frozen=True)
class Measured:
    """What became of measurements."""

    left: int  # runs that were not run, for lack of time or because they failed
    failures: Mapping[str, str]  # why runs failed, by what each is called


def measure_all(repetitions: Sequence[Repetition], context: MeasureContext) -> Measured:
    """Measure what was not measured yet, as far as the time goes.

    A run that fails is named and the others go on. Where the very first fails, all would most likely: its error is
    raised at once, unless it is about the run's own folder, or the others are of other tables or other processes run
    them anyway.
    """
    trainings = _trainings(repetitions, context)
    if context.shard is not None:
        own = _own_part(repetitions, context, *context.shard)
        trainings = {path: training for path, training in trainings.items() if path in own}
    if context.claims.over:
        left = _collect(trainings, context)
        return Measured(left, {})
    if trainings:
        context.results.check_writable()
        check_writable(context.out, "runs", "--out")
    done, failed, elsewhere, failures = 0, 0, 0, dict[str, str]()
    at_once = not context.several_tables and not context.claims.shared
    recipes = {path: training.recipe for path, training in trainings.items()}
    for number, paths in group_trainings(recipes, context.together, select.device(context.settings.device)):
        fit = 0 if context.budget.exhausted else context.budget.how_many_fit([recipes[path] for path in paths])
        free = context.claims.take(paths[:fit])
        elsewhere += fit - len(free) + sum(map(context.claims.is_taken, paths[fit:]))
        if not (paths := free):
            continue  # perhaps a shorter one still fits, or one that no other process has taken
        what = describe([recipes[path] for path in paths])
        cells = name_cells((r.table, r.cell) for path in paths for r in trainings[path].repetitions)
        context.log(f"[{span(number, len(paths))}/{len(trainings)}] {what}: {cells}")
        with read_once():
            errors = _measure({path: trainings[path] for path in paths}, context)
        for path, error in errors.items():
            very_first = not done and not failures and len(errors) == len(paths)
            if very_first and at_once and not isinstance(error, DamagedRun):
                raise error
            name, reason = _name(trainings[path], context.several_tables), describe_error(error)
            context.log(f"failed: {name}: {reason}")
            context.claims.fail(name, reason)
            failures[name] = reason
        done, failed = done + len(paths) - len(errors), failed + len(errors)
    not_begun = len(trainings) - done - failed - elsewhere
    if not_begun and not context.several_tables:  # else shorter ones of other tables may still fit
        context.log(f"the time is up: {not_begun} of {len(trainings)} runs are left")
    return Measured(not_begun + failed, failures)


def _collect(trainings: Mapping[Path, Training], context: MeasureContext) -> int:
    """Enter what other processes have measured, as far as it is; returns how many runs are left."""
    left = 0
    for path, training in trainings.items():
        done = 0
        for repetition in training.repetitions:
            with suppress(DamagedRun):  # which the process that took the run has named
                if _is_finished(path) and _stage_is_done(repetition, path):
                    context.results.add(_measurement(repetition, path, None))
                    done += 1
        left += done < len(training.repetitions)
    return left


def _stage_is_done(repetition: Repetition, path: Path) -> bool:
    if repetition.cell.stage is None:
        return True
    settings = stage_settings(repetition.cell, repetition.recipe)
    return reopen.load_stage_result(reopen.stage_file(path, repetition.cell.stage, settings)) is not None


def _name(training: Training, with_tables: bool) -> str:
    """Return what a training is called: its cells, perhaps with their tables, and what was drawn for it."""
    cells = [" ".join([r.cell.name, *r.cell.overrides]) for r in training.repetitions]
    if with_tables:
        cells = [name_cells((r.table, r.cell) for r in training.repetitions)]
    drawn = f"seed {training.recipe.seed}"
    if training.recipe.partition_seed is not None:
        drawn += f", split {training.recipe.partition_seed}"
    return f"{' and '.join(dict.fromkeys(cells))}, {drawn}"


def _own_part(repetitions: Sequence[Repetition], context: MeasureContext, number: int, count: int) -> set[Path]:
    """Return the folders of a part of all trainings; whether they are measured already does not matter."""
    every = {folder(context.out, r.recipe): r.recipe for r in repetitions}
    groups = group_trainings(every, context.together, select.device(context.settings.device))
    return {path for place, (_, paths) in enumerate(groups) if place % count == number - 1 for path in paths}


def _trainings(repetitions: Sequence[Repetition], context: MeasureContext) -> dict[Path, Training]:
    """The trainings behind what was not measured yet; what was, under another cell's name, is entered under this."""
    trainings: dict[Path, Training] = {}
    seen: dict[Path, tuple[Recipe, float, int]] = {}  # what trainings took with their stages, their shares
    device = environment.device_name(select.device(context.settings.device))
    for repetition in repetitions:
        cell, recipe = repetition.cell, repetition.recipe
        path, row = folder(context.out, recipe), repetition.found(context.results)
        if row is None:
            trainings.setdefault(path, Training(recipe, [])).repetitions.append(repetition)
            continue
        context.results.add(replace(row, table=repetition.table, cell=cell.name, overrides=" ".join(cell.overrides)))
        if row.training_seconds is not None and row.device == device:
            taken = seen.get(path, (recipe, row.training_seconds, row.together or 1))
            seen[path] = (taken[0], taken[1] + (row.stage_seconds or 0), taken[2])
    for recipe, seconds, together in seen.values():
        context.budget.record(recipe, seconds * together, together)
    return trainings


def folder(out: Path, recipe: Recipe) -> Path:
    """The run folder of a training: cells that train alike have the same one, and others where a default changes."""
    keys = {k: v for k, v in all_settings(recipe).items() if k != "seed"}
    code = hashlib.blake2b(json.dumps(keys, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()
    words = re.sub(r"[^a-z0-9.]+", "-", f"{recipe.dataset}-{recipe.partition}-{recipe.method}".lower())
    return out / "runs" / f"{words.strip('-')}-{code}" / f"seed-{recipe.seed}"


def _measure(trainings: Mapping[Path, Training], context: MeasureContext) -> dict[Path, Exception]:
    """Run trainings that may train together and record their results, each as soon as it is known.

    Returns:
        The errors of those that failed, in their training or in a stage; the others are measured.
    """
    unfinished = [path for path in trainings if not _is_finished(path)]
    begin = time.perf_counter()
    recipes = {path: training.recipe for path, training in trainings.items()}
    errors = train(recipes, context.together, context.settings)
    shared = (time.perf_counter() - begin) / max(1, len(unfinished))
    times = {path: (shared, len(unfinished)) if path in unfinished else None for path in trainings}
    ended = {path: training for path, training in trainings.items() if path not in errors}
    for path, training in ended.items():
        for repetition in training.repetitions:
            if repetition.cell.stage is None:
                context.results.add(_measurement(repetition, path, times[path]))
    for path, training in ended.items():
        if failures := _stages(path, training, context, times[path]):
            errors[path] = failures[0]
    for path in unfinished:
        context.budget.record(trainings[path].recipe, time.perf_counter() - begin, len(unfinished))
    return errors


def _is_finished(path: Path) -> bool:
    try:
        return begun_with(path) == ""
    except BadInput:  # a damaged folder, which its own run will name
        return False


def _stages(
    path: Path, training: Training, context: MeasureContext, timing: tuple[float, int] | None
) -> list[Exception]:
    """Run the stages that the cells of one training still lack, all from the one checkpoint; returns what failed."""
    trained: reopen.Trained | None = None
    failures = list[Exception]()
    for repetition in training.repetitions:
        cell = repetition.cell
        if cell.stage is None:
            continue
        try:
            settings = stage_settings(cell, training.recipe)
            file = reopen.stage_file(path, cell.stage, settings)
            if reopen.load_stage_result(file) is None:
                trained = trained or reopen.reopen(path, context.settings.data, context.settings.device)
                _, (stage,) = build.algorithms(stage_recipe(cell, training.recipe))
                reopen.save_stage_result(file, cell.stage, settings, trained.run(stage))
            context.results.add(_measurement(repetition, path, timing))
        except Exception as error:  # a user's own code may raise anything
            raise_if_fatal(error)
            failures.append(error)
    return failures


# -- rows of results ------------------------------------------------------------------------------------------
def _measurement(repetition: Repetition, path: Path, timing: tuple[float, int] | None) -> Measurement:
    """The row of a cell from its run folder; `timing` has the training's seconds and how many runs shared them."""
    cell, run = repetition.cell, RunFolder.open(path)
    trained, about = run.result() or {}, run.environment()
    result: Mapping[str, Any] = trained
    if cell.stage is not None:
        settings = stage_settings(cell, repetition.recipe)
        result = reopen.load_stage_result(reopen.stage_file(path, cell.stage, settings)) or {}
    clients = [c for c in result.get("clients") or [] if c is not None]
    seconds, together = timing or (_recorded_seconds(trained), 1)
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
        client_deviation=statistics.stdev(clients) if len(clients) > 1 else None,
        bytes_up=result.get("bytes_up"),
        bytes_down=result.get("bytes_down"),
        training_seconds=None if seconds is None else round(seconds, 2),
        stage_seconds=None if cell.stage is None else result.get("seconds"),
        together=together,
        executor=str(trained.get("executor", "")),
        precision=str(about.get("precision", "")),
        device=str(about.get("device_name") or ""),
        version=str((about.get("versions") or {}).get("fedhead") or ""),
        commit=str(about.get("commit") or ""),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _recorded_seconds(trained: Mapping[str, Any]) -> float | None:
    """What a run that ended in an earlier process took."""
    seconds = trained.get("seconds")
    return None if seconds is None else float(seconds) + float(trained.get("preparing") or 0)
