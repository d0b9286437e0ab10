"""Pivot of a comparison: methods in rows, settings in columns, chosen by what varies among the recipes."""

from __future__ import annotations

import re
import statistics as python_statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedhead.core.system.errors import require, unknown
from fedhead.metrics.records import Row
from fedhead.recipes.recipe import KEYS, SAMPLE_KEYS, Recipe
from fedhead.report.compare import statistics
from fedhead.report.compare.measured import Measured, Replicate

# What repeats a setting, and what changes no result.
_REPEATS = ("seed", "seeds", "partition_seed", "loggers", "metrics")
# What decides the data: values of different data are never compared in one column.
_DATA = (*SAMPLE_KEYS, "validation")
_PLAIN = ("dataset", "partition")  # their values say what they are


@dataclass(frozen=True)
class Cell:
    """The values of one method in one setting.

    Args:
        values: One per seed and split.
    """

    values: Mapping[Replicate, float]

    @property
    def mean(self) -> float:
        """Their mean."""
        return python_statistics.fmean(self.values.values())

    @property
    def deviation(self) -> float | None:
        """Their standard deviation (n − 1); None for one value."""
        return python_statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Return the interval of the mean by Student's t; None for one value."""
        return statistics.interval(list(self.values.values()), level)


@dataclass(frozen=True)
class Pivot:
    """Values by method (rows) and setting (columns).

    Args:
        rows: Labels of the methods, with the stage that follows and the settings that only tell methods apart.
        methods: Name of each row's method.
        keys: The recipe's keys that tell columns apart.
        columns: Values of those keys, one tuple per column.
        cells: Values by the indices of row and column, where there are any.
        notes: What a reader must know of runs that do not count.
    """

    rows: tuple[str, ...]
    methods: tuple[str, ...]
    keys: tuple[str, ...]
    columns: tuple[tuple[Any, ...], ...]
    cells: Mapping[tuple[int, int], Cell]
    notes: tuple[str, ...]

    def headings(self) -> list[str]:
        """Return a label per column."""
        return [_heading(self.keys, values) for values in self.columns]


@dataclass(frozen=True)
class Arrangement:
    """The keys that tell methods (rows) and settings (columns) of some recipes apart.

    A setting in which runs differ is a column, unless each method has one value of it: then it is part of the method's
    label, as a learning rate that was chosen per method. Settings of the data are always columns.

    Args:
        columns: The keys of the settings.
        rows: The keys that labels of methods name.
        unshown: Keys that differ too, but follow from method and setting.
    """

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    unshown: tuple[str, ...]

    @classmethod
    def of(cls, recipes: Iterable[Recipe], by: Sequence[str] = ()) -> Arrangement:
        """Arrange recipes.

        Args:
            recipes: The recipes of all runs.
            by: Keys of the columns; what else differs goes to the rows, except settings of the data. Empty: by what
                varies.

        Raises:
            BadInput: If `by` names no key of a recipe, or a key of the rows.
        """
        flat = [flat_recipe(recipe) for recipe in recipes]
        columns = _column_keys(flat, by)
        rows, unshown = _row_keys(flat, columns)
        return cls(tuple(columns), tuple(rows), tuple(unshown))

    def row(self, recipe: Recipe, stage: str = "") -> str:
        """Return the label of a recipe's method, with the stage that follows."""
        flat, prefix = flat_recipe(recipe), f"stage.{stage}."
        keys = [key for key in self.rows if key in flat]
        method = [f"{k.removeprefix('method.')}={text(flat[k])}" for k in keys if not k.startswith("stage.")]
        after = [f"{k.removeprefix(prefix)}={text(flat[k])}" for k in keys if k.startswith(prefix)]
        label = _label(recipe.method, method)
        return f"{label} + {_label(stage, after)}" if stage else label

    def values(self, recipe: Recipe) -> tuple[Any, ...]:
        """Return a recipe's values of the column keys."""
        flat = flat_recipe(recipe)
        return tuple(flat.get(key) for key in self.columns)

    def column(self, recipe: Recipe) -> str:
        """Return the label of a recipe's setting."""
        return _heading(self.columns, self.values(recipe))


def _label(name: str, parameters: Sequence[str]) -> str:
    return f"{name} ({', '.join(parameters)})" if parameters else name


def flat_recipe(recipe: Recipe) -> Row:
    """Return a recipe's settings without seeds and what changes no result."""
    return {k: v for k, v in recipe.flat().items() if k not in _REPEATS}


def _heading(keys: Sequence[str], values: Sequence[Any]) -> str:
    """Return a column's label: the values, with their key where a value does not say what it is."""
    return ", ".join(text(v) if k in _PLAIN else f"{k}={text(v)}" for k, v in zip(keys, values, strict=True))


def pivot(measured: Sequence[Measured], metric: str, arrangement: Arrangement) -> Pivot:
    """Arrange the values of a metric by method and setting.

    Args:
        measured: What the runs measured.
        metric: Which of their values.
        arrangement: The keys that tell methods and settings apart.
    """
    unshown = arrangement.unshown
    verb = "differs" if len(unshown) == 1 else "differ"
    notes = [f"{', '.join(unshown)} {verb} between methods or settings too"] if unshown else []
    rows: dict[str, Recipe] = {}
    columns: dict[str, tuple[Any, ...]] = {}
    cells: dict[tuple[str, str], dict[Replicate, Measured]] = {}
    for m in measured:
        if metric not in m.values:
            notes.append(f"{m.where}{f' after {m.stage}' if m.stage else ''} has no {metric} and does not count")
            continue
        row, column = arrangement.row(m.recipe, m.stage), arrangement.column(m.recipe)
        rows.setdefault(row, m.recipe)
        columns.setdefault(column, arrangement.values(m.recipe))
        cell = cells.setdefault((row, column), {})
        if (first := cell.setdefault(m.replicate, m)) is not m and not _share_training(m, first, metric):
            notes.append(_repeated(row, m, first, metric))
    order = sorted(columns, key=natural)
    places = {(row, column): (i, j) for i, row in enumerate(rows) for j, column in enumerate(order)}
    return Pivot(
        tuple(rows),
        tuple(recipe.method for recipe in rows.values()),
        arrangement.columns,
        tuple(columns[column] for column in order),
        {places[at]: Cell({r: m.values[metric] for r, m in cell.items()}) for at, cell in cells.items()},
        tuple(notes),
    )


def _column_keys(recipes: Sequence[Row], by: Sequence[str]) -> list[str]:
    for key in by:
        require(not _of_row(key), f"by {key}: methods and stages are the rows; name a setting, such as partition")
        require(key not in _REPEATS, f"by {key}: means are over seeds; name a setting, such as partition")
        if key not in KEYS and not any(key in recipe for recipe in recipes):
            raise unknown("key", key, {*KEYS, *(key for recipe in recipes for key in recipe)} - {*_REPEATS})
    settings = [key for key in differing(recipes) if not _of_row(key)]
    data = [key for key in settings if key in _DATA]
    if by:
        return list(dict.fromkeys([*by, *data]))
    varied = [key for key in settings if key in data or not _follows(recipes, key, ["method", *data])]
    return varied or ["dataset", "partition"]  # one column, which says where all runs are from


def _row_keys(recipes: Sequence[Row], columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the keys that rows show, and those that follow from method and column, of which a note is enough."""
    shown: list[str] = []
    unshown: list[str] = []
    for key in differing(recipes):
        if key in columns or key in ("method", "stages"):
            continue
        users = recipes_using(recipes, key)
        if _of_row(key) and key not in differing(users):
            continue  # those that have it agree
        by_method = not _of_row(key) and _follows(users, key, ["method"])
        (shown if by_method or not _follows(users, key, ["method", *columns]) else unshown).append(key)
    return shown, unshown


def _of_row(key: str) -> bool:
    return key.partition(".")[0] in ("method", "stage", "stages")


def _follows(recipes: Sequence[Row], key: str, given: Sequence[str]) -> bool:
    """Say whether the value of a key follows from those of others."""
    found: dict[str, set[str]] = {}
    for recipe in recipes:
        found.setdefault(repr([recipe.get(k) for k in given]), set()).add(repr(recipe.get(key)))
    return all(len(values) == 1 for values in found.values())


def _share_training(second: Measured, first: Measured, metric: str) -> bool:
    """Say whether runs that differ in their stages alone share a result, as those of a sweep over stages do."""
    one, other = flat_recipe(first.recipe), flat_recipe(second.recipe)
    return (
        one != other and without_stages(one) == without_stages(other) and first.values[metric] == second.values[metric]
    )


def _repeated(label: str, second: Measured, first: Measured, metric: str) -> str:
    a, b = first.values[metric], second.values[metric]
    same = "the same result" if a == b else f"another result ({a:.4g} and {b:.4g})"
    return f"{label}: {second.where} repeats {first.replicate} of {first.where} with {same}, only the first counts"


def text(value: Any) -> str:
    """Return a setting's value as recipes write it; null for None, lists with commas between."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(text, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def natural(word: str) -> list[tuple[int, float, str]]:
    """Sort numbers within texts by their size: dirichlet(0.05) before dirichlet(0.1) before dirichlet(10)."""
    parts = re.split(r"(\d+(?:\.\d+)?)", word)
    return [(0, float(part), "") if i % 2 else (1, 0.0, part) for i, part in enumerate(parts)]


def differing(recipes: Sequence[Row]) -> list[str]:
    """Return the keys that recipes do not agree in."""
    names = dict.fromkeys(key for recipe in recipes for key in recipe)
    return [key for key in names if len({repr(recipe.get(key)) for recipe in recipes}) > 1]


def recipes_using(recipes: Sequence[Row], key: str) -> list[Row]:
    """Return the recipes that use a key: parameters of a method or a stage are for those alone, defaults too."""
    if key.startswith("stage."):
        stage = key.removeprefix("stage.").rpartition(".")[0]
        return [recipe for recipe in recipes if stage in recipe["stages"]]
    methods = {recipe["method"] for recipe in recipes if key in recipe}
    return [recipe for recipe in recipes if not key.startswith("method.") or recipe["method"] in methods]


def without_stages(recipe: Row) -> Row:
    """Return the settings that decide a recipe's training: all but those of stages, which come after it."""
    return {k: v for k, v in recipe.items() if k.partition(".")[0] not in ("stages", "stage")}
