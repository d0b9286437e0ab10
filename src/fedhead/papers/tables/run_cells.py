"""Measurement of paper tables: an ordinary run per cell, seed and split, with shared trainings."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedhead.core.system.log import Log
from fedhead.core.tree.digest import digest_json
from fedhead.engine.experiment.compute import Compute
from fedhead.metrics.averages import mean_and_deviation
from fedhead.papers.tables.paper_tables import PaperCell, Scale
from fedhead.papers.tables.results import Measurement, Results, all_settings, value_at
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder import RunFolder
from fedhead.studies.engines import LocalEngine
from fedhead.studies.queue import RunQueue
from fedhead.studies.run_job import RunJob, result_of
from fedhead.studies.time_budget import TimeBudget
from fedhead.studies.training import training_key
from fedhead.studies.writable import check_writable


@dataclass(frozen=True)
class Repetition:
    """Cell to be measured with one seed on one split."""

    table: str
    cell: PaperCell
    digest: str
    scale: Scale
    recipe: Recipe  # recipe of the cell, including its stage

    @property
    def split(self) -> int:
        """Seed of the partition."""
        return self.recipe.seed if self.recipe.partition_seed is None else self.recipe.partition_seed

    @property
    def name(self) -> str:
        """Name of the cell with its overrides, seed and split."""
        split = [] if self.recipe.partition_seed is None else [f"split {self.recipe.partition_seed}"]
        return ", ".join([" ".join([self.cell.name, *self.cell.overrides]), f"seed {self.recipe.seed}", *split])

    def row(self, results: Results) -> Measurement | None:
        """Return the row if it is already measured."""
        return results.find(self.digest, self.split, self.recipe.seed)


@dataclass(frozen=True)
class MeasureContext:
    """Options and results of a measurement."""

    out: Path  # parent of the run folders
    results: Results = field(default_factory=Results)
    compute: Compute = field(default_factory=Compute)
    budget: TimeBudget = field(default_factory=TimeBudget)
    log: Log = lambda _: None
    shard: tuple[int, int] | None = None  # shard to run and number of shards, such as (3, 16)
    engine: LocalEngine = field(default_factory=LocalEngine)


class TableQueue(RunQueue):
    """Queue of a table's trainings, which records results immediately.

    Args:
        jobs: Repetitions that share a training, keyed by `training_key`.
        context: Options and results.
    """

    def __init__(self, jobs: Mapping[str, Sequence[Repetition]], context: MeasureContext):
        self._repetitions, self._context = jobs, context
        super().__init__([_job(each, context) for each in jobs.values()], context.budget, context.log)

    def finish(self, job: RunJob, result: Mapping[str, str]) -> None:
        """Record the results of a training and its stages."""
        enter_finished(self._repetitions[training_key(job.recipe)], self._context)
        super().finish(job, result)


def measure_all(repetitions: Sequence[Repetition], context: MeasureContext) -> tuple[int, Mapping[str, str]]:
    """Measure missing results within the time budget; a failed run does not stop the others.

    Returns:
        The number of missing or failed runs, and the reasons of failures by name.
    """
    jobs: dict[str, list[Repetition]] = {}
    for repetition in repetitions:
        jobs.setdefault(training_key(repetition.recipe), []).append(repetition)
    if context.shard is not None:
        number, count = context.shard  # shards count all trainings, measured or not
        jobs = dict(list(jobs.items())[number - 1 :: count])
    _enter_known([r for each in jobs.values() for r in each], context)
    missing = {key: left for key, each in jobs.items() if (left := enter_finished(each, context))}
    if missing:
        context.results.check_writable()
        check_writable(context.out, "runs", "--out")
    queue = TableQueue(missing, context)
    context.engine.run(queue)
    if queue.left:
        context.log(f"the time is up: {queue.left} of {queue.unfinished} runs are left")
    return queue.left + len(queue.failures), queue.failures


def enter_finished(repetitions: Sequence[Repetition], context: MeasureContext) -> list[Repetition]:
    """Record the results of finished runs and return the missing repetitions.

    An unreadable run counts as missing; measuring it reports the error.

    Args:
        repetitions: Repetitions.
        context: Options and results.
    """
    for repetition in repetitions:
        if repetition.row(context.results) is None:
            path = folder(context.out, repetition.recipe)
            if (result := result_of(path)) is not None:
                context.results.add(_measurement(repetition, result, RunFolder.open(path).environment()))
    return [repetition for repetition in repetitions if repetition.row(context.results) is None]


def _enter_known(repetitions: Sequence[Repetition], context: MeasureContext) -> None:
    """Record results of other tables under this table's names."""
    for repetition in repetitions:
        cell, row = repetition.cell, repetition.row(context.results)
        if row is not None:
            overrides = " ".join(cell.overrides)
            context.results.add(replace(row, table=repetition.table, cell=cell.name, overrides=overrides))


def _job(repetitions: Sequence[Repetition], context: MeasureContext) -> RunJob:
    """Create the job of one training: the first run has no stage, and the others start from its checkpoint."""
    first = repetitions[0].recipe
    training = replace(repetitions[0].cell, stage=None, parameters={}).recipe(first.seed, first.partition_seed)
    runs = {folder(context.out, training): training}
    names: dict[Path, str] = {}
    for repetition in repetitions:
        path = folder(context.out, repetition.recipe)
        runs[path] = repetition.recipe
        names[path] = f"{names[path]} and {repetition.name}" if path in names else repetition.name
    names = {path: names.get(path, f"training of {repetitions[0].name}") for path in runs}
    return RunJob(runs, names, context.compute)


def folder(out: Path, recipe: Recipe) -> Path:
    """Return the run folder of a recipe, shared by cells with the same run; it depends on defaults too."""
    keys = {k: v for k, v in all_settings(recipe).items() if k != "seed"}
    code = digest_json(keys, 4)
    parts = "-".join([str(recipe.dataset), recipe.partition, recipe.method, *recipe.stages])
    text = re.sub(r"[^a-z0-9.]+", "-", parts.lower())
    return out / "runs" / f"{text.strip('-')}-{code}" / f"seed-{recipe.seed}"


def _measurement(repetition: Repetition, trained: Mapping[str, Any], about: Mapping[str, Any]) -> Measurement:
    """Return the row of a cell from the results and the environment of its run."""
    cell = repetition.cell
    stages = list((trained.get("stages") or {}).values())
    result: Mapping[str, Any] = trained if cell.stage is None else stages[-1]
    together = about.get("runs_at_once", 1)
    seconds = trained["seconds"] - sum(stage["seconds"] for stage in stages) + (trained.get("compile_seconds") or 0)
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
        training_seconds=round(seconds / together, 2),
        stage_seconds=None if cell.stage is None else result.get("seconds"),
        together=together,
        executor=str(trained.get("executor", "")),
        precision=str(about.get("precision", "")),
        device=str(about.get("device_name") or ""),
        version=str((about.get("versions") or {}).get("fedhead") or ""),
        commit=str(about.get("commit") or ""),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
