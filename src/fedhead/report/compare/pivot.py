"""The pivot of a comparison: methods in rows, settings in columns, chosen by what varies among the recipes."""

from __future__ import annotations

import re
import statistics as python_statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedhead.core.system.errors import BadInput, unknown
from fedhead.metrics.records import Row
from fedhead.recipes.recipe import KEYS, SAMPLE_KEYS, Recipe, is_key
from fedhead.report.compare import statistics
from fedhead.report.compare.measured import Measured, Replicate
from fedhead.report.compare.recipe_keys import differing, recipes_using, without_stages

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
        settings: What each row's label says besides the method and its parameters, by key.
    """

    rows: tuple[str, ...]
    methods: tuple[str, ...]
    keys: tuple[str, ...]
    columns: tuple[tuple[Any, ...], ...]
    cells: Mapping[tuple[int, int], Cell]
    notes: tuple[str, ...]
    settings: tuple[Row, ...]

    def headings(self) -> list[str]:
        """Return a label per column: the values, with their key where a value does not say what it is."""
        return [_heading(self.keys, values) for values in self.columns]


@dataclass(frozen=True)
class Arrangement:
    """What tells methods and settings of some recipes apart.

    Args:
        columns: The keys of the settings.
        rows: The keys that labels of methods name.
        unshown: Keys that differ too, but follow from method and setting.
    """

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    unshown: tuple[str, ...]

    def row(self, recipe: Recipe, stage: str = "") -> str:
        """Return the label of a recipe's method, with the stage that follows."""
        return _row_label(_kept(recipe), self.rows, stage)

    def column(self, recipe: Recipe) -> str:
        """Return the label of a recipe's setting."""
        flat = _kept(recipe)
        return _heading(self.columns, [flat.get(key) for key in self.columns])

    def ordered(self, columns: Iterable[str]) -> list[str]:
        """Return labels of settings in their order."""
        return sorted(dict.fromkeys(columns), key=_natural)


def arrange(recipes: Iterable[Recipe]) -> Arrangement:
    """Find what tells the methods and the settings of recipes apart; see `pivot`."""
    return _arrange([_kept(recipe) for recipe in recipes], ())


def _arrange(flat: Sequence[Row], by: Sequence[str]) -> Arrangement:
    columns = _column_keys(flat, by)
    rows, unshown = _row_keys(flat, columns)
    axes = [key for key in columns if not is_key(key)]  # what a choice of a sweep sets is known by its name
    unshown = [key for key in unshown if not axes or not _follows(flat, key, axes)]
    return Arrangement(tuple(columns), tuple(rows), tuple(unshown))


def _kept(recipe: Recipe) -> Row:
    return {k: v for k, v in recipe.flat().items() if k not in _REPEATS}


def _heading(keys: Sequence[str], values: Sequence[Any]) -> str:
    named = zip(keys, values, strict=True)
    return ", ".join(text(v) if k in _PLAIN or not is_key(k) else f"{k}={text(v)}" for k, v in named)


def pivot(
    measured: Sequence[Measured], metric: str, by: Sequence[str] = (), arrangement: Arrangement | None = None
) -> Pivot:
    """Arrange the values of a metric by method and setting.

    A setting in which runs differ is a column, unless each method has one value of it: then it is part of the method's
    label, as a learning rate that was chosen per method. What each method has one value of per data set is only noted.
    Settings of the data are always columns.

    Args:
        measured: What the runs measured.
        metric: Which of their values.
        by: Keys of the columns; what else differs goes to the rows, except settings of the data. Empty: by what varies.
            Named axes of a sweep (`Measured.choices`) are such keys too.
        arrangement: What tells methods and settings apart, where further recipes have a part in that.

    Raises:
        BadInput: If `by` names neither a key of a recipe nor an axis, or an axis that some of the runs do not have.
    """
    axes = _axes(measured, by)
    flat = {
        id(m): _kept(m.recipe) | {key: m.choices[axis].name for axis, key in axes.items() if axis in m.choices}
        for m in measured
    }
    arrangement = arrangement or _arrange(list(flat.values()), [axes.get(name, name) for name in by])
    keys, own, unshown = arrangement.columns, arrangement.rows, arrangement.unshown
    rows: dict[str, tuple[str, Row]] = {}
    cells: dict[tuple[str, tuple[str, ...]], dict[Replicate, Measured]] = {}
    values: dict[tuple[str, ...], tuple[Any, ...]] = {}
    verb = "differs" if len(unshown) == 1 else "differ"
    notes = [f"{', '.join(unshown)} {verb} between methods or settings too"] if unshown else []
    notes += [
        f"not all runs are of a sweep with the named axis {name}: the columns are by the recipe's key {name}"
        for name in by
        if name not in axes and any(name in m.choices for m in measured)
    ]
    for m in measured:
        recipe = flat[id(m)]
        label = _row_label(recipe, own, m.stage)
        rows.setdefault(label, (m.recipe.method, {k: recipe[k] for k in own if k in recipe and not _of_row(k)}))
        if metric not in m.values:
            notes.append(f"{m.where}{f' after {m.stage}' if m.stage else ''} has no {metric} and does not count")
            continue
        place = tuple(text(recipe.get(k)) for k in keys)
        values.setdefault(place, tuple(recipe.get(k) for k in keys))
        cell = cells.setdefault((label, place), {})
        if (first := cell.setdefault(m.replicate, m)) is not m and not _trained_alike(m, first, metric):
            notes.append(_repeated(label, m, first, metric))
    numbers = _numbers(measured, axes)
    order = sorted(
        values, key=lambda place: [(numbers.get(at, 0), _natural(at[1])) for at in zip(keys, place, strict=True)]
    )
    shown = [label for label in rows if any(label == row for row, _ in cells)]
    return Pivot(
        tuple(shown),
        tuple(rows[label][0] for label in shown),
        keys,
        tuple(values[place] for place in order),
        {
            (i, j): Cell({replicate: m.values[metric] for replicate, m in cells[label, place].items()})
            for i, label in enumerate(shown)
            for j, place in enumerate(order)
            if (label, place) in cells
        },
        tuple(notes),
        tuple(rows[label][1] for label in shown),
    )


def _axes(measured: Sequence[Measured], by: Sequence[str]) -> dict[str, str]:
    """Return those of some names that are axes, with the key of each; an axis comes before the recipe's key."""
    recipes = [_kept(m.recipe) for m in measured] if by else []
    for name in by:
        have = [m for m in measured if name in m.choices]
        if not have and name not in KEYS and not any(name in recipe for recipe in recipes):
            axes = {axis for m in measured for axis in m.choices}
            known = {*KEYS, *axes, *(key for recipe in recipes for key in recipe)} - {*_REPEATS}
            raise unknown("key of recipes, or named axis of the runs' sweep," if axes else "key", name, known)
        if 0 < len(have) < len(measured) and not is_key(name):
            other = next(m for m in measured if name not in m.choices)
            raise BadInput(
                f"by {name}: {have[0].where} is of a sweep with this axis, {other.where} is not; compare the runs of "
                "that sweep alone, or name a recipe's key"
            )
    found = [name for name in by if all(name in m.choices for m in measured)]
    return {name: f"axis {name}" if is_key(name) else name for name in found}  # beside the recipe's key of that name


def _numbers(measured: Sequence[Measured], axes: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """Return the places of choices among those of their axes, by the axis' key and the choice."""
    found: dict[tuple[str, str], int] = {}
    for m in measured:
        for axis, key in axes.items():
            found.setdefault((key, m.choices[axis].name), m.choices[axis].number)
    return found


def _column_keys(recipes: Sequence[Row], by: Sequence[str]) -> list[str]:
    for key in by:
        if _of_row(key):
            raise BadInput(f"by {key}: methods and stages are the rows; name a setting, such as partition")
        if key in _REPEATS:
            raise BadInput(f"by {key}: means are over seeds; name a setting, such as partition")
    settings = [key for key in differing(recipes) if not _of_row(key)]
    data = [key for key in settings if key in _DATA]
    if by:
        axes = [key for key in by if not is_key(key)]
        apart = [key for key in data if key not in by and not (axes and _follows(recipes, key, axes))]
        return [*dict.fromkeys(by), *apart]
    found = [key for key in settings if key in data or not _follows(recipes, key, ["method", *data])]
    return found or ["dataset", "partition"]  # one column, which says where all runs are from


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
    """Whether the value of a key follows from those of others."""
    found: dict[str, set[str]] = {}
    for recipe in recipes:
        found.setdefault(repr([recipe.get(k) for k in given]), set()).add(repr(recipe.get(key)))
    return all(len(values) == 1 for values in found.values())


def _row_label(recipe: Row, keys: Sequence[str], stage: str) -> str:
    prefix = f"stage.{stage}."
    own = [f"{k.removeprefix('method.')}={text(recipe[k])}" for k in keys if k in recipe and not k.startswith("stage.")]
    after = [f"{k.removeprefix(prefix)}={text(recipe[k])}" for k in keys if k in recipe and k.startswith(prefix)]
    label = str(recipe["method"]) + (f" ({', '.join(own)})" if own else "")
    return label + (f" + {stage}" if stage else "") + (f" ({', '.join(after)})" if stage and after else "")


def _trained_alike(second: Measured, first: Measured, metric: str) -> bool:
    """Whether runs that differ in their stages alone share a result, as those of a sweep over stages do."""
    one, other = _kept(first.recipe), _kept(second.recipe)
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


def _natural(word: str) -> list[tuple[int, float, str]]:
    """Sort numbers within texts by their size: dirichlet(0.05) before dirichlet(0.1) before dirichlet(10)."""
    parts = re.split(r"(\d+(?:\.\d+)?)", word)
    return [(0, float(part), "") if i % 2 else (1, 0.0, part) for i, part in enumerate(parts)]
