"""Trainings carried out to fill cells: which share a training, which train together, and their figures kept at once."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedhead.core.errors import FedheadError
from fedhead.executors import select
from fedhead.executors.stack import Stack
from fedhead.experiment import build, environment, reopen
from fedhead.experiment.clock import Clock
from fedhead.experiment.recipe import Recipe
from fedhead.experiment.results import Measurement, Results, figure_at, stage_recipe
from fedhead.experiment.run import Settings, execute, execute_together, stack_is_best
from fedhead.experiment.run_folder import RunFolder
from fedhead.experiment.tables import Cell, Scale

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
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
class Way:
    """How runs are carried out, and where they and their figures go."""

    out: Path  # the run folders' place
    results: Results = field(default_factory=Results)
    settings: Settings = field(default_factory=Settings)
    clock: Clock = field(default_factory=Clock)
    together: bool | None = None  # train seeds and splits of a method in one stack; None: on a GPU where that is best
    say: Say = lambda _: None
    go_on: bool = False  # whether the other runs are carried out even if the first one fails


@dataclass(frozen=True)
class Job:
    """A training, and what is to be measured of it."""

    recipe: Recipe
    wanted: list[Wanted]


def carry_out(wanted: Sequence[Wanted], way: Way) -> int:
    """Measure what was not measured yet, as far as the time goes; returns how many runs are left.

    A run that fails is named and the others go on; its error is raised at the end, or at once if it is the first.
    """
    jobs = _jobs(wanted, way)
    done, failures = 0, list[FedheadError]()
    for number, paths in _in_order({path: job.recipe for path, job in jobs.items()}, way.together, way.settings):
        if way.clock.over:
            break
        paths = paths[: way.clock.fitting([jobs[path].recipe for path in paths])]
        if not paths:
            continue  # perhaps a shorter one still fits
        way.say(f"[{_span(number, len(paths))}/{len(jobs)}] {_what([jobs[path].recipe for path in paths])}")
        try:
            _measure({path: jobs[path] for path in paths}, way)
            done += len(paths)
        except FedheadError as error:
            if not done and not way.go_on:
                raise
            way.say(f"failed: {error}")
            failures.append(error)
    if failures and not way.go_on:
        raise failures[0]
    if done < len(jobs):
        way.say(f"the time is up: {len(jobs) - done} of {len(jobs)} runs are left")
    return len(jobs) - done


def _jobs(wanted: Sequence[Wanted], way: Way) -> dict[Path, Job]:
    """The trainings behind what was not measured yet; what was, under another cell's name, is entered under this."""
    jobs: dict[Path, Job] = {}
    seen: dict[Path, tuple[Recipe, float, int]] = {}  # what trainings took with their stages, their shares
    device = environment.device_name(select.device(way.settings.device))
    for w in wanted:
        row = w.found(way.results)
        if row is None:
            jobs.setdefault(folder(way.out, w.recipe), Job(w.recipe, [])).wanted.append(w)
            continue
        way.results.add(replace(row, table=w.table, cell=w.cell.name, overrides=" ".join(w.cell.overrides)))
        if row.training_seconds is not None and row.device == device:
            place = folder(way.out, w.recipe)
            taken = seen.get(place, (w.recipe, row.training_seconds, row.together or 1))
            seen[place] = (taken[0], taken[1] + (row.stage_seconds or 0), taken[2])
    for recipe, seconds, together in seen.values():
        way.clock.learn(recipe, seconds * together, together)
    return jobs


def _span(first: int, count: int) -> str:
    return f"{first}-{first + count - 1}" if count > 1 else str(first)


def _what(recipes: Sequence[Recipe]) -> str:
    partitions = ", ".join(dict.fromkeys(r.partition for r in recipes))
    seeds = list(dict.fromkeys(str(r.seed) for r in recipes))
    splits = list(dict.fromkeys(str(r.partition_seed) for r in recipes if r.partition_seed is not None))
    drawn = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
    drawn += f" split{'s' if len(splits) > 1 else ''} {', '.join(splits)}" if splits else ""
    return f"{recipes[0].dataset} {partitions} {recipes[0].method} {drawn}"


def folder(out: Path, recipe: Recipe) -> Path:
    """The run folder of a training: cells that train alike have the same one."""
    keys = {k: v for k, v in recipe.flat().items() if k != "seed"}
    code = hashlib.blake2b(json.dumps(keys, sort_keys=True).encode(), digest_size=4).hexdigest()
    words = re.sub(r"[^a-z0-9.]+", "-", f"{recipe.dataset}-{recipe.partition}-{recipe.method}".lower())
    return out / "runs" / f"{words.strip('-')}-{code}" / f"seed-{recipe.seed}"


def _in_order(
    recipes: Mapping[Path, Recipe], together: bool | None, settings: Settings
) -> Iterator[tuple[int, list[Path]]]:
    """The runs with the number of the first: one after another, or those in groups that may train together.

    Runs that differ in nothing but their seed and their split do the same work, whichever cells they belong to; a
    group has as many of them as a stack holds clients. Groups come in the order of their first runs.
    """
    groups: list[list[Path]] = []
    open_groups: dict[Any, list[Path]] = {}
    joined = select.device(settings.device).type == "cuda" if together is None else together
    for path, recipe in recipes.items():
        key = _work(recipe) if joined else path
        mine = open_groups.get(key)
        if mine is None or (len(mine) + 1) * recipe.clients > Stack.SIZE:
            groups.append(mine := [])
            open_groups[key] = mine
        mine.append(path)
    number = 1
    for paths in groups:
        yield number, paths
        number += len(paths)


def _work(recipe: Recipe) -> str:
    """What a recipe's training has in common with those that can share its stack."""
    apart = ("seed", "seeds", "partition", "partition_seed", "stages", "stage.")
    return json.dumps({k: v for k, v in recipe.flat().items() if not k.startswith(apart)}, sort_keys=True)


def _measure(jobs: Mapping[Path, Job], way: Way) -> None:
    """Carry out runs that may train together and enter their figures, each as soon as it is known."""
    unfinished = [path for path in jobs if _begun(path) != ""]
    begin = time.perf_counter()
    try:
        _train({path: job.recipe for path, job in jobs.items()}, way.together, way.settings)
    finally:  # of runs that trained together, some may have ended well
        shared = (time.perf_counter() - begin) / max(1, len(unfinished))
        times = {path: (shared, len(unfinished)) if path in unfinished else None for path in jobs}
        ended = {path: job for path, job in jobs.items() if _begun(path) == ""}
        for path, job in ended.items():
            for w in job.wanted:
                if w.cell.stage is None:
                    way.results.add(_measurement(w, path, times[path]))
    failures = [error for path, job in ended.items() for error in _stages(path, job, way, times[path])]
    for path in unfinished:
        way.clock.learn(jobs[path].recipe, time.perf_counter() - begin, len(unfinished))
    if failures:
        raise failures[0]


def _train(runs: Mapping[Path, Recipe], together: bool | None, settings: Settings) -> None:
    """Carry out runs that differ in their seed and split alone, as far as they are not finished."""
    for path in runs:
        path.parent.mkdir(parents=True, exist_ok=True)
    # a run that was begun with another executor goes on with that one, alone
    joint = {path: recipe for path, recipe in runs.items() if _begun(path) in (None, "stack")}
    if len(joint) > 1 and (together or stack_is_best(next(iter(joint.values())), settings)):
        execute_together(list(joint.values()), list(joint), settings, resume=True)
    for path, recipe in runs.items():
        execute(recipe, path, settings, resume=True)  # leaves a finished run as it is


def _begun(path: Path) -> str | None:
    """The executor of an unfinished run, None where there is none yet, "" for a finished one."""
    if not path.exists() or not any(path.iterdir()):
        return None
    run = RunFolder.open(path)
    return "" if run.finished else run.environment().get("executor")


def _stages(path: Path, job: Job, way: Way, took: tuple[float, int] | None) -> list[FedheadError]:
    """Run the stages that the cells of one training still lack, all from the one checkpoint; returns what failed."""
    trained: reopen.Trained | None = None
    failures = []
    for w in job.wanted:
        if w.cell.stage is None:
            continue
        file = reopen.stage_file(path, w.cell.stage, w.cell.parameters)
        try:
            if reopen.load_outcome(file) is None:
                trained = trained or reopen.reopen(path, way.settings.data, way.settings.device)
                (stage,) = build.stages(stage_recipe(w.cell, job.recipe))
                reopen.save_outcome(file, w.cell.stage, w.cell.parameters, trained.run(stage))
            way.results.add(_measurement(w, path, took))
        except FedheadError as error:
            failures.append(error)
    return failures


# -- figures ------------------------------------------------------------------------------------------
def _measurement(w: Wanted, path: Path, took: tuple[float, int] | None) -> Measurement:
    """A cell's row from its run's folder; `took`: the training's share of the time and of how many runs, if known."""
    run = RunFolder.open(path)
    trained, about = run.result() or {}, run.environment()
    result: Mapping[str, Any] = trained
    if w.cell.stage is not None:
        result = reopen.load_outcome(reopen.stage_file(path, w.cell.stage, w.cell.parameters)) or {}
    clients = [c for c in result.get("clients") or [] if c is not None]
    seconds, together = took or (_known(trained), 1)
    return Measurement(
        table=w.table,
        cell=w.cell.name,
        overrides=" ".join(w.cell.overrides),
        digest=w.digest,
        scale=w.scale,
        split=w.split,
        seed=w.recipe.seed,
        metric=w.cell.metric,
        value=figure_at(result, w.cell.value),
        stage=w.cell.stage or "none",
        accuracy=result.get("accuracy"),
        accuracy_mean=result.get("accuracy_mean"),
        personal=result.get("personal"),
        client_deviation=statistics.stdev(clients) if len(clients) > 1 else None,
        bytes_up=result.get("bytes_up"),
        bytes_down=result.get("bytes_down"),
        training_seconds=None if seconds is None else round(seconds, 2),
        stage_seconds=None if w.cell.stage is None else result.get("seconds"),
        together=together,
        executor=str(trained.get("executor", "")),
        precision=str(about.get("precision", "")),
        device=str(about.get("device_name") or ""),
        version=str((about.get("versions") or {}).get("fedhead") or ""),
        commit=str(about.get("commit") or ""),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _known(trained: Mapping[str, Any]) -> float | None:
    """What a run that ended in an earlier process took."""
    seconds = trained.get("seconds")
    return None if seconds is None else float(seconds) + float(trained.get("preparing") or 0)
