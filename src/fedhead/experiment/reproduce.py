"""A table of a paper carried out: its runs, their stages, and our figures beside the published ones."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedhead.algorithm.base import Stage
from fedhead.core.errors import BadInput
from fedhead.core.treefile import atomic
from fedhead.executors import select
from fedhead.executors.stack import Stack
from fedhead.experiment import build, reopen
from fedhead.experiment.recipe import Recipe
from fedhead.experiment.run import Settings, execute, execute_together, refuse_apart, stack_is_best
from fedhead.experiment.run_folder import RunFolder
from fedhead.experiment.tables import Cell, Scale, Table, published


@dataclass(frozen=True)
class Figure:
    """A cell's figure, ours and the paper's, in per cent."""

    cell: str
    choices: Mapping[str, str]
    metric: str
    values: Sequence[float | None]  # ours, a seed each; None where the run has no such figure
    mean: float | None
    deviation: float | None  # over seeds or clients, as the paper's; None where there is but one
    published: float | None
    published_deviation: float | None
    difference: float | None  # ours less the paper's; None where the two can't be compared


@dataclass(frozen=True)
class Outcome:
    """A table with our figures in it, as far as it was run."""

    table: str
    title: str
    scale: str
    seeds: int
    comparable: bool
    axes: Sequence[str]
    figures: Sequence[Figure]

    def note(self) -> str:
        """What a reader must know before comparing."""
        if self.comparable:
            return f"{self.seeds} seed{'s' if self.seeds > 1 else ''}; the papers' settings"
        return (
            f"scale small, {self.seeds} seed{'s' if self.seeds > 1 else ''}: other data, models or rounds than the "
            f"paper's, so the figures are NOT comparable with the published ones"
        )


def reproduce(
    table: Table,
    out: Path,
    *,
    scale: Scale = "full",
    pick: Sequence[str] = (),
    seeds: int | None = None,
    settings: Settings | None = None,
    together: bool | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run what is not there yet of a table, and write table.json and table.csv into the folder `out`.

    Runs that were finished are not run again, interrupted ones go on where they stopped. With `together` the seeds
    and splits of a method train in one stack, each to its own single run's figures; None: on a GPU, where a stack is
    fastest.
    """
    settings, count = settings or Settings(), table.seeds(scale) if seeds is None else seeds
    if count < 1:
        raise BadInput(f"--seeds {count}: at least 1 is needed")
    if together:
        refuse_apart(settings)
    cells = table.cells(scale, pick)
    for cell in cells:
        _validate(cell)
    jobs: dict[Path, tuple[Recipe, list[Cell]]] = {}
    for seed in range(count):
        for cell in cells:
            recipe = cell.recipe(seed)
            jobs.setdefault(folder(out, recipe), (recipe, []))[1].append(cell)
    for number, paths in _in_order(jobs, together, settings):
        recipes = [jobs[path][0] for path in paths]
        last = f"-{number + len(paths) - 1}" if len(paths) > 1 else ""
        splits = ", ".join(dict.fromkeys(r.partition for r in recipes))
        numbers = ", ".join(dict.fromkeys(str(r.seed) for r in recipes))
        what = f"{recipes[0].dataset} {splits} {recipes[0].method}"
        say(f"[{number}{last}/{len(jobs)}] {what} seed{'s' if ',' in numbers else ''} {numbers}")
        _train(dict(zip(paths, recipes, strict=True)), together, settings)
        for path, recipe in zip(paths, recipes, strict=True):
            _stages(path, recipe, jobs[path][1], settings)
    figures = [_figure(cell, [folder(out, cell.recipe(seed)) for seed in range(count)], scale) for cell in cells]
    outcome = Outcome(table.name, table.title, scale, count, scale == "full", table.axes(), figures)
    _write(out, outcome)
    return outcome


def folder(out: Path, recipe: Recipe) -> Path:
    """The run folder of a training: cells that train alike have the same one."""
    keys = {k: v for k, v in recipe.flat().items() if k != "seed"}
    digest = hashlib.blake2b(json.dumps(keys, sort_keys=True).encode(), digest_size=4).hexdigest()
    words = re.sub(r"[^a-z0-9.]+", "-", f"{recipe.dataset}-{recipe.partition}-{recipe.method}".lower())
    return out / "runs" / f"{words.strip('-')}-{digest}" / f"seed-{recipe.seed}"


def _in_order(
    jobs: Mapping[Path, tuple[Recipe, Any]], together: bool | None, settings: Settings
) -> Iterator[tuple[int, list[Path]]]:
    """The runs with the number of the first: one after another, or those in groups that may train together.

    Runs that differ in nothing but their seed and their split do the same work, whichever cells they belong to; a
    group has as many of them as a stack holds clients.
    """
    groups: dict[Any, list[list[Path]]] = {}
    joined = select.device(settings.device).type == "cuda" if together is None else together
    for path, (recipe, _) in jobs.items():
        mine = groups.setdefault(_work(recipe) if joined else path, [[]])
        if (len(mine[-1]) + 1) * recipe.clients > Stack.SIZE and mine[-1]:
            mine.append([])
        mine[-1].append(path)
    number = 1
    for paths in (group for mine in groups.values() for group in mine):
        yield number, paths
        number += len(paths)


def _work(recipe: Recipe) -> str:
    """What a recipe's training has in common with those that can share its stack."""
    apart = ("seed", "seeds", "partition", "partition_seed", "stages", "stage.")
    return json.dumps({k: v for k, v in recipe.flat().items() if not k.startswith(apart)}, sort_keys=True)


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


def _validate(cell: Cell) -> None:
    """Refuse a cell that can't be run before any is."""
    recipe = cell.recipe(0)
    try:
        build.validate(recipe)
        if cell.stage is not None:
            _stage(cell, recipe)
    except BadInput as error:
        raise BadInput(f"{cell.name}: {error}") from error
    published(cell)


def _stage(cell: Cell, recipe: Recipe) -> Stage:
    with_stage = {**recipe.flat(), "stages": [cell.stage]}
    with_stage |= {f"stage.{cell.stage}.{word}": value for word, value in cell.parameters.items()}
    return build.stages(Recipe.from_flat(with_stage))[0]


def _stages(path: Path, recipe: Recipe, wanted: Sequence[Cell], settings: Settings) -> None:
    """Run the stages that the cells of one training still lack, all from the one checkpoint."""
    missing = {}
    for cell in wanted:
        if cell.stage is not None:
            file = reopen.stage_file(path, cell.stage, cell.parameters)
            if reopen.load_outcome(file) is None:
                missing[file] = cell
    if not missing:
        return
    trained = reopen.reopen(path, settings.data, settings.device)
    for file, cell in missing.items():
        reopen.save_outcome(file, str(cell.stage), cell.parameters, trained.run(_stage(cell, recipe)))


def _figure(cell: Cell, runs: Sequence[Path], scale: Scale) -> Figure:
    results = [_result(cell, path) for path in runs]
    values = [_at(result, cell.value) for result in results]
    there = [v for v in values if v is not None]
    mean = statistics.fmean(there) if there else None
    spread = there
    if cell.deviation == "clients":
        spread = [c for result in results for c in result.get("clients") or [] if c is not None]
    deviation = statistics.stdev(spread) if len(spread) > 1 else None
    paper = published(cell)
    difference = mean - paper[0] if paper and mean is not None and scale == "full" else None
    expected, expected_deviation = paper if paper else (None, None)
    return Figure(
        cell.name, cell.choices, cell.metric, values, mean, deviation, expected, expected_deviation, difference
    )


def _result(cell: Cell, path: Path) -> Mapping[str, Any]:
    if cell.stage is not None:
        return reopen.load_outcome(reopen.stage_file(path, cell.stage, cell.parameters)) or {}
    found: Mapping[str, Any] = json.loads((path / "result.json").read_text(encoding="utf-8"))
    return found


def _at(result: Mapping[str, Any], place: str) -> float | None:
    value: Any = result
    for word in place.split("."):
        value = value.get(word) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def _write(out: Path, outcome: Outcome) -> None:
    with atomic(out / "table.json") as draft:
        draft.write_text(json.dumps(asdict(outcome) | {"note": outcome.note()}, indent=2) + "\n", encoding="utf-8")
    columns = ["metric", "ours", "deviation", "seeds", "published", "published_deviation", "difference", "scale"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*outcome.axes, *columns])
    for f in outcome.figures:
        row = [f.metric, f.mean, f.deviation, len(f.values), f.published, f.published_deviation, f.difference]
        cut = [round(v, 4) if isinstance(v, float) else v for v in row]
        writer.writerow([*(f.choices[axis] for axis in outcome.axes), *cut, outcome.scale])
    with atomic(out / "table.csv") as draft:
        draft.write_text(text.getvalue(), encoding="utf-8")
