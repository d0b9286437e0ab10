"""A table of a paper carried out: its runs, their stages, and our figures beside the published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhead.core.errors import BadInput
from fedhead.data import datasets
from fedhead.experiment import build, outcome, tables
from fedhead.experiment.clock import Clock, cost
from fedhead.experiment.measure import Say, Wanted, Way, carry_out, folder
from fedhead.experiment.outcome import Outcome
from fedhead.experiment.published import published
from fedhead.experiment.recipe import Recipe
from fedhead.experiment.results import Measurement, Results, digest, stage_recipe
from fedhead.experiment.run import Settings, refuse_apart
from fedhead.experiment.tables import Cell, Scale, Table


def reproduce(
    table: Table,
    out: Path,
    *,
    scale: Scale = "full",
    pick: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    splits: int | Sequence[int] | None = None,
    overrides: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
    results: Path | None = None,
    minutes: float | None = None,
    settings: Settings | None = None,
    together: bool | None = None,
    say: Say = lambda _: None,
) -> Outcome:
    """Run what is not there yet of a table, and write table.json and table.csv into the folder `out`.

    Runs that were finished are not run again, interrupted ones go on where they stopped.

    Args:
        table: The table.
        out: Where its runs go.
        scale: The paper's settings, or a version that runs in minutes on a CPU.
        pick: Which cells, see `Table.cells`; none: all.
        seeds: How many of the paper's seeds, or which; None: all of them.
        splits: How many partitions, drawn by seeds from 0 on, or the seeds of which; None: the table's own.
        overrides: Recipe keys that replace the table's own.
        variants: Names of the table's variants; given, their cells are measured in place of the table's own.
        results: A folder whose CSV file keeps each figure; what it holds is not measured again.
        minutes: Begin no run that is not likely to end in this time.
        settings: Device, executor, precision and data folder.
        together: Whether seeds and splits of a method train in one stack, each to its own single run's figures;
            None: on a GPU, where a stack is fastest.
        say: Learns of each run that begins.
    """
    settings = settings or Settings()
    if together:
        refuse_apart(settings)
    cells = table.cells(scale, pick)
    if variants:
        cells = table.varied(cells, variants)
    if overrides:
        changed = [cell.override(overrides) for cell in cells]
        if all(len(new.overrides) == len(old.overrides) for new, old in zip(changed, cells, strict=True)):
            raise BadInput(f"{', '.join(overrides)}: concerns none of the picked cells of {table.name}")
        cells = changed
    _validate(cells)
    wanted = [w for cell in cells for w in all_wanted(table.name, cell, scale, seeds, splits)]
    way = Way(out, Results(results), settings, Clock(minutes), together, say)
    wanted.sort(key=lambda w: (w.recipe.seed, w.split))  # so that a table that is stopped early has every cell
    left = carry_out(wanted, way)
    found: dict[str, list[Measurement]] = {}
    for w in wanted:
        if (row := w.found(way.results)) is not None:
            found.setdefault(w.digest, []).append(row)
    figures = [outcome.figure(cell, found.get(digest(cell), []), scale) for cell in cells]
    made = Outcome(
        table=table.name,
        title=table.title,
        scale=scale,
        seeds=sorted({w.recipe.seed for w in wanted}),
        splits=sorted({w.split for w in wanted}),
        comparable=scale == "full",
        axes=table.axes(),
        figures=figures,
        left=left,
    )
    outcome.write(out, made)
    return made


def reproduce_next(
    out: Path,
    results: Path,
    minutes: float,
    *,
    scale: Scale = "full",
    only: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    splits: int | Sequence[int] | None = None,
    settings: Settings | None = None,
    together: bool | None = None,
    say: Say = lambda _: None,
) -> int:
    """Measure published figures that `results` lacks, over all tables (or `only` those named), for so many minutes.

    Tables and their parts come in the order of their `priority`; within one, every cell comes once before any comes
    with a second seed or split, and trainings that give a figure for the least computation come first. A training
    is measured for all cells that start from it, of whichever table. Data sets that are not there are left out.

    Returns:
        How many runs are left.
    """
    settings = settings or Settings()
    way = Way(out, Results(results), settings, Clock(minutes), together, say, go_on=True)
    by_training: dict[Path, list[tuple[int, Wanted]]] = {}  # with which repetition of its cell each is
    for name in only or tables.names():
        for cell in tables.load(name).cells(scale):
            if published(cell) is not None:
                for number, w in enumerate(all_wanted(name, cell, scale, seeds, splits)):
                    if w.found(way.results) is None:
                        by_training.setdefault(folder(out, w.recipe), []).append((number, w))
    there = {name: _there(name, settings.data) for name in _datasets(by_training)}
    for name in sorted(name for name in there if not there[name]):
        say(f"{name} is not there: its cells are left out")

    possible = [found for found in by_training.values() if all(there[name] for name in _data_of(found[0][1].recipe))]
    tiers: dict[int, list[list[tuple[int, Wanted]]]] = {}
    for found in possible:
        tiers.setdefault(min(w.cell.priority for _, w in found), []).append(found)
    left = len(possible)
    for priority in sorted(tiers):
        if way.clock.over:
            break
        trainings = sorted(tiers[priority], key=_rank)
        left -= len(trainings) - carry_out([w for found in trainings for _, w in found], way)
    return left


def _rank(training: list[tuple[int, Wanted]]) -> tuple[int, float]:
    """First repetitions first, then those that give a figure for the least computation."""
    return min(number for number, _ in training), cost(training[0][1].recipe) / len(training)


def _data_of(recipe: Recipe) -> list[str]:
    return [name for name in (recipe.dataset, recipe.public) if name is not None]


def _datasets(trainings: Mapping[Path, list[tuple[int, Wanted]]]) -> set[str]:
    return {name for found in trainings.values() for name in _data_of(found[0][1].recipe)}


def _there(dataset: str, data: str | Path | None) -> bool:
    """Whether a data set can be read without the network."""
    try:
        datasets.get(dataset).part("test", data, download=False)
    except BadInput:
        return False
    return True


def all_wanted(
    table: str, cell: Cell, scale: Scale, seeds: int | Sequence[int] | None, splits: int | Sequence[int] | None
) -> list[Wanted]:
    """Return a cell once per seed and split."""
    code = digest(cell)
    recipes = [cell.recipe(seed, split) for split in drawn_splits(splits) for seed in drawn_seeds(cell.seeds, seeds)]
    return [Wanted(table, cell, code, scale, recipe) for recipe in recipes]


def drawn_seeds(own: Sequence[int], asked: int | Sequence[int] | None) -> list[int]:
    """Return the seeds: the paper's own, so many of them (then those that follow), or those asked for.

    >>> drawn_seeds([7, 8, 10], 4)
    [7, 8, 10, 11]
    """
    if asked is None:
        return list(own)
    if not isinstance(asked, int):
        return list(asked)
    if asked < 1:
        raise BadInput(f"--seeds {asked}: at least 1 is needed")
    return [*own, *range(max(own) + 1, max(own) + 1 + asked)][:asked]


def drawn_splits(asked: int | Sequence[int] | None) -> list[int | None]:
    """Return the partitions' seeds; None stands for the table's own."""
    if asked is None:
        return [None]
    if isinstance(asked, int) and asked < 1:
        raise BadInput(f"--splits {asked}: at least 1 is needed")
    return list(range(asked) if isinstance(asked, int) else asked)


def _validate(cells: Sequence[Cell]) -> None:
    """Refuse cells that can't be run before any is; what several cells train is checked once."""
    checked: list[Recipe] = []
    for cell in cells:
        recipe = cell.recipe(0)
        try:
            if recipe not in checked:
                build.validate(recipe)
                checked.append(recipe)
            build.stages(stage_recipe(cell, recipe))
        except BadInput as error:
            raise BadInput(f"{cell.name}: {error}") from error
        published(cell)
