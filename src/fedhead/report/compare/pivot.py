"""Pivot table of a comparison: methods in rows and settings in columns, found from the recipe keys that vary."""

from __future__ import annotations

import re
import statistics as python_statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedhead.core.system.errors import require, unknown
from fedhead.metrics.records import Row
from fedhead.recipes.recipe import KEYS, SAMPLE_KEYS, Recipe
from fedhead.report.compare import statistics
from fedhead.report.compare.measured import Measured, Replicate, independent

# Keys that differ between repetitions of one setting, and keys that don't affect results.
_REPEATS = ("seed", "partition_seed", "loggers", "metrics")
# Keys of the data: different data are never compared in one column.
LEFT_OUT = "leave_out_site"  # of the server, not of the recipe
_DATA = (*SAMPLE_KEYS, "validation", LEFT_OUT)
_PLAIN = ("dataset", "partition")  # headings show their values without the key


@dataclass(frozen=True)
class Cell:
    """Values of one method in one setting.

    Args:
        values: Values by seed and split.
    """

    values: Mapping[Replicate, float]

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return python_statistics.fmean(self.values.values())

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the values (n − 1); None for one value."""
        return python_statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Return the confidence interval of the mean over splits, or over the seeds of one split, by Student's t."""
        return statistics.interval(independent(self.values), level)


@dataclass(frozen=True)
class Pivot:
    """Values by method (rows) and setting (columns).

    Args:
        rows: Labels of the methods, with stage and further keys that distinguish methods.
        methods: Name of each row's method, with its stage.
        keys: Recipe keys of the columns.
        columns: Values of those keys, one tuple per column.
        cells: Non-empty cells by indices of row and column.
        notes: Notes about excluded runs.
        digits: Significant digits of numbers in labels.
    """

    rows: tuple[str, ...]
    methods: tuple[str, ...]
    keys: tuple[str, ...]
    columns: tuple[tuple[Any, ...], ...]
    cells: Mapping[tuple[int, int], Cell]
    notes: tuple[str, ...]
    digits: int

    @property
    def varying(self) -> list[int]:
        """Indices in `keys` of the keys whose values differ between columns; all indices if there is one column."""
        places = range(len(self.keys))
        return [k for k in places if len({repr(values[k]) for values in self.columns}) > 1] or list(places)

    @property
    def common(self) -> str:
        """Label of the keys that all columns share; empty if there are none."""
        shared = [] if len(self.columns) == 1 else [k for k in range(len(self.keys)) if k not in self.varying]
        return brief(_heading([self.keys[k] for k in shared], [self.columns[0][k] for k in shared]), self.digits)

    def headings(self) -> list[str]:
        """Return a label per column, without the keys that all columns share."""
        keys = [self.keys[k] for k in self.varying]
        return [brief(_heading(keys, [values[k] for k in self.varying]), self.digits) for values in self.columns]


@dataclass(frozen=True)
class Arrangement:
    """Recipe keys that distinguish methods (rows) and settings (columns).

    A key whose values differ becomes part of the columns. If each method has only one value of the key, such as a
    learning rate tuned per method, it becomes part of the method's label. Keys of the data are always in the columns.

    Args:
        columns: Keys of the columns.
        rows: Keys in the labels of methods.
        unshown: Further keys that vary, but are determined by method and setting.
        digits: Significant digits of numbers in labels, at least four, and enough to distinguish all values.
        labels: The user's labels by method, stage or row.
    """

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    unshown: tuple[str, ...]
    digits: int
    labels: Mapping[str, str]

    @classmethod
    def of(
        cls, settings: Iterable[Row], by: Sequence[str] = (), labels: Mapping[str, str] | None = None
    ) -> Arrangement:
        """Arrange the settings of runs.

        Args:
            settings: Keys of all runs, from `flat_recipe`.
            by: Keys of the columns; other keys go to the rows, except keys of the data. Empty: all keys that vary.
            labels: Labels that replace the names of methods or stages, or whole labels of rows.

        Raises:
            BadInput: If `by` has an unknown key, or a key of the rows.
        """
        flat = list(settings)
        columns = _column_keys(flat, by)
        rows, unshown = _row_keys(flat, columns)
        values = {(key, text(recipe.get(key))) for recipe in flat for key in (*columns, *rows)}
        distinct = (d for d in range(4, 17) if len({(key, brief(value, d)) for key, value in values}) == len(values))
        return cls(tuple(columns), tuple(rows), tuple(unshown), next(distinct, 17), labels or {})

    def row(self, recipe: Recipe, stage: str = "") -> str:
        """Return the label of a recipe's method and stage."""
        flat, prefix = flat_recipe(recipe), f"stage.{stage}."
        shown = {key: brief(text(flat[key]), self.digits) for key in self.rows if key in flat}
        method = [f"{k.removeprefix('method.')}={value}" for k, value in shown.items() if not k.startswith("stage.")]
        after = [f"{k.removeprefix(prefix)}={value}" for k, value in shown.items() if k.startswith(prefix)]
        parts = [(recipe.method, method), *([(stage, after)] if stage else [])]
        plain = [_label(name, parameters) for name, parameters in parts]
        labels = [
            self.labels.get(label) or _label(self.labels.get(name, name), parameters)
            for label, (name, parameters) in zip(plain, parts, strict=True)
        ]
        return self.labels.get(" + ".join(plain)) or " + ".join(labels)

    def check_labels(self, rows: Iterable[tuple[Recipe, str]]) -> None:
        """Check the user's labels: each names a method, stage or row, and no two rows get the same one.

        Args:
            rows: Recipe and stage of each row, "" for the end of the rounds.

        Raises:
            BadInput: If a label matches no method, stage or row, or two rows have the same label.
        """
        plain, known, before = replace(self, labels={}), set[str](), dict[str, str]()
        for recipe, stage in rows if self.labels else ():
            row, label = plain.row(recipe, stage), self.row(recipe, stage)
            known |= {recipe.method, row} | ({stage} if stage else set())
            require(before.setdefault(label, row) == row, f"{before[label]} and {row} have the same label {label!r}")
        for name in self.labels:
            if name not in known:
                raise unknown("method or stage to label", name, known)

    def values(self, setting: Row) -> tuple[Any, ...]:
        """Return a run's values of the column keys; the setting is from `flat_recipe`."""
        return tuple(setting.get(key) for key in self.columns)

    def column(self, setting: Row) -> str:
        """Return the label of a run's column; the setting is from `flat_recipe`."""
        return brief(_heading(self.columns, self.values(setting)), self.digits)


def _label(name: str, parameters: Sequence[str]) -> str:
    return f"{name} ({', '.join(parameters)})" if parameters else name


def flat_recipe(recipe: Recipe, left_out: str | None = None) -> Row:
    """Return a recipe's keys without seeds and keys that don't affect results.

    Args:
        recipe: Recipe of a run.
        left_out: Site that only tested, which becomes a key of the data; None: all sites trained.
    """
    kept = {k: v for k, v in recipe.flat().items() if k not in _REPEATS}
    return kept if left_out is None else kept | {LEFT_OUT: left_out}


def _heading(keys: Sequence[str], values: Sequence[Any]) -> str:
    """Return the label of a column: the values, with their keys except `_PLAIN`."""
    return ", ".join(text(v) if k in _PLAIN else f"{k}={text(v)}" for k, v in zip(keys, values, strict=True))


def pivot(measured: Sequence[Measured], metric: str, arrangement: Arrangement) -> Pivot:
    """Arrange the values of a metric by method and setting.

    Args:
        measured: Measurements.
        metric: Metric.
        arrangement: Keys of rows and columns.
    """
    unshown = arrangement.unshown
    verb = "differs" if len(unshown) == 1 else "differ"
    notes = [f"{', '.join(unshown)} {verb} between methods or settings too"] if unshown else []
    rows: dict[str, str] = {}
    columns: dict[str, tuple[Any, ...]] = {}
    cells: dict[tuple[str, str], dict[Replicate, Measured]] = {}
    for m in measured:
        if metric not in m.values:
            notes.append(f"{m.where}{f' after {m.stage}' if m.stage else ''} has no {metric} and does not count")
            continue
        if m.tested and metric.startswith("personal"):
            after = f" after {m.stage}" if m.stage else ""
            notes.append(
                f"{m.where}{after}: {metric} is the mean over {m.tested} clients, the others failed or were absent"
            )
        setting = flat_recipe(m.recipe, m.left_out)
        row, column = arrangement.row(m.recipe, m.stage), arrangement.column(setting)
        rows.setdefault(row, f"{m.recipe.method} + {m.stage}" if m.stage else m.recipe.method)
        columns.setdefault(column, arrangement.values(setting))
        cell = cells.setdefault((row, column), {})
        if (first := cell.setdefault(m.replicate, m)) is not m and not _share_training(m, first, metric):
            notes.append(_repeated(row, m, first, metric))
    order = sorted(columns, key=natural)
    places = {(row, column): (i, j) for i, row in enumerate(rows) for j, column in enumerate(order)}
    return Pivot(
        tuple(rows),
        tuple(rows.values()),
        arrangement.columns,
        tuple(columns[column] for column in order),
        {places[at]: Cell({r: m.values[metric] for r, m in cell.items()}) for at, cell in cells.items()},
        tuple(notes),
        arrangement.digits,
    )


def _column_keys(recipes: Sequence[Row], by: Sequence[str]) -> list[str]:
    for key in by:
        require(not _of_row(key), f"by {key}: methods and stages are the rows; name a setting, such as partition")
        require(key not in _REPEATS, f"by {key}: means are over seeds; name a setting, such as partition")
        if key not in KEYS and not any(key in recipe for recipe in recipes):
            known = {*KEYS, *(key for recipe in recipes for key in recipe)} - {*_REPEATS}
            raise unknown("key", key, known, "fedhead ls keys")
    settings = [key for key in differing(recipes) if not _of_row(key)]
    data = [key for key in settings if key in _DATA]
    if by:
        return list(dict.fromkeys([*by, *data]))
    varied = [key for key in settings if key in data or not _follows(recipes, key, ["method", *data])]
    if varied:
        return varied
    left_out = [LEFT_OUT] if any(LEFT_OUT in recipe for recipe in recipes) else []
    return ["dataset", "partition", *left_out]  # a single column with the data of all runs


def _row_keys(recipes: Sequence[Row], columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the recipe keys of the row labels, and those left out since method and column determine their values."""
    shown: list[str] = []
    unshown: list[str] = []
    for key in differing(recipes):
        if key in columns or key in ("method", "stages"):
            continue
        users = recipes_using(recipes, key)
        if _of_row(key) and key not in differing(users):
            continue  # all values are equal
        by_method = not _of_row(key) and _follows(users, key, ["method"])
        (shown if by_method or not _follows(users, key, ["method", *columns]) else unshown).append(key)
    return shown, unshown


def _of_row(key: str) -> bool:
    return key.partition(".")[0] in ("method", "stage", "stages")


def _follows(recipes: Sequence[Row], key: str, given: Sequence[str]) -> bool:
    """Return whether recipes with equal values of the given keys also have equal values of this key."""
    groups: dict[str, set[str]] = {}
    for recipe in recipes:
        groups.setdefault(repr([recipe.get(k) for k in given]), set()).add(repr(recipe.get(key)))
    return all(len(values) == 1 for values in groups.values())


def _share_training(second: Measured, first: Measured, metric: str) -> bool:
    """Return whether two runs have the same training and differ only in their stages, as in a sweep over stages."""
    a, b = flat_recipe(first.recipe), flat_recipe(second.recipe)
    return a != b and without_stages(a) == without_stages(b) and first.values[metric] == second.values[metric]


def _repeated(label: str, second: Measured, first: Measured, metric: str) -> str:
    a, b = first.values[metric], second.values[metric]
    same = "the same result" if a == b else f"another result ({a:.4g} and {b:.4g})"
    return f"{label}: {second.where} repeats {first.replicate} of {first.where} with {same}, only the first counts"


def text(value: Any) -> str:
    """Format a value for labels: null for None, lists separated by commas."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(text, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


_LONG_NUMBER = re.compile(r"(?<![^=(,\[ ])-?\d*\.\d{5,}(?:e[-+]?\d+)?(?![^),\] ])")


def brief(label: str, digits: int = 4) -> str:
    """Round the numbers of a label that have more than four decimals.

    >>> brief("fedprox (mu=0.022881136684755242)"), brief("dirichlet(5.0), lr=3.5e-05")
    ('fedprox (mu=0.02288)', 'dirichlet(5.0), lr=3.5e-05')

    Args:
        label: Label, such as of a method with its parameters.
        digits: Significant digits to keep.
    """
    return _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.{digits}g}", label)


def natural(word: str) -> list[tuple[int, float, str]]:
    """Return a sort key with numbers in numeric order: dirichlet(0.05), dirichlet(0.1), dirichlet(10)."""
    parts = re.split(r"(\d+(?:\.\d+)?)", word)
    return [(0, float(part), "") if i % 2 else (1, 0.0, part) for i, part in enumerate(parts)]


def differing(recipes: Sequence[Row]) -> list[str]:
    """Return the keys that vary between recipes."""
    names = dict.fromkeys(key for recipe in recipes for key in recipe)
    return [key for key in names if len({repr(recipe.get(key)) for recipe in recipes}) > 1]


def recipes_using(recipes: Sequence[Row], key: str) -> list[Row]:
    """Return the recipes that use a key; a parameter is used only with its method or stage."""
    if key.startswith("stage."):
        stage = key.removeprefix("stage.").rpartition(".")[0]
        return [recipe for recipe in recipes if stage in recipe["stages"]]
    methods = {recipe["method"] for recipe in recipes if key in recipe}
    return [recipe for recipe in recipes if not key.startswith("method.") or recipe["method"] in methods]


def without_stages(recipe: Row) -> Row:
    """Return the recipe keys that determine the training: all except those of stages."""
    return {k: v for k, v in recipe.items() if k.partition(".")[0] not in ("stages", "stage")}
