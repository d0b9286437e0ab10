"""Tables: runs that differ only in their seed form one row, with mean and standard deviation.

Only finished runs are averaged, and each seed counts once, however many folders hold it. Runs that differ in their
stages alone have one row for their common training, and one for each stage.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhead.metrics.records import Row
from fedhead.report.compare.recipe_keys import differing, recipes_using, without_stages
from fedhead.runs.read_runs import Run


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed and their stages."""

    label: str
    runs: list[Run]  # the finished ones, one per seed
    unfinished: list[Run]  # those that were stopped or diverged, one per seed that has no finished run
    notes: list[str]  # what a reader must know of the folders that do not count
    settings: Row  # its values of the settings that differ, except method and stages
    stages: Mapping[str, list[tuple[Run, str]]]  # by label: the finished runs that have it, one per seed, and its name


@dataclass(frozen=True)
class TableRow:
    """A row of the table: one method, possibly followed by a stage, over its seeds."""

    label: str
    accuracy: list[float]
    personal: list[float]
    seeds: list[int]
    uncounted: str  # what else there is, such as "1 unfinished, 1 diverged"


def group_by_seed(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in their seed and stages, labeled by the method and the settings that differ."""
    by_settings: dict[str, list[Run]] = {}
    for run in runs:
        by_settings.setdefault(repr(without_stages(_settings(run))), []).append(run)
    recipes = [_settings(runs[0]) for runs in by_settings.values()]
    keys = [k for k in _distinguishing(recipes) if k != "method" and k.partition(".")[0] not in ("stages", "stage")]
    settings = [{k: r[k] for k in keys if k in r} for r in recipes]
    of_stages = [k for k in _distinguishing([_settings(run) for run in runs]) if k.startswith("stage.")]
    return [
        Group(label, *_one_per_seed(runs), own, _stages(runs, of_stages))
        for label, runs, own in zip(_labels(recipes, settings), by_settings.values(), settings, strict=True)
    ]


def _settings(run: Run) -> Row:
    return {k: v for k, v in run.recipe.flat().items() if k not in ("seed", "seeds", "loggers")}


def _distinguishing(recipes: Sequence[Row]) -> list[str]:
    """Return the keys that tell recipes apart: a parameter only does where recipes that use it differ."""
    return [k for k in differing(recipes) if k in differing(recipes_using(recipes, k))]


def _stages(runs: Sequence[Run], keys: Sequence[str]) -> dict[str, list[tuple[Run, str]]]:
    """Return the finished runs of each stage, one per seed, with the stage's name; keys tell labels apart."""
    found: dict[str, list[tuple[Run, str]]] = {}
    for run in sorted(runs, key=lambda run: run.recipe.seed):
        flat = run.recipe.flat()
        for stage in run.recipe.stages:
            if run.result is None or stage not in run.result["stages"]:
                continue
            prefix = f"stage.{stage}."
            own = {k.removeprefix(prefix): flat[k] for k in keys if k.startswith(prefix) and k in flat}
            entries = found.setdefault(_label(stage, own), [])
            if all(run.recipe.seed != other.recipe.seed for other, _ in entries):
                entries.append((run, stage))
    return found


def _one_per_seed(runs: Sequence[Run]) -> tuple[list[Run], list[Run], list[str]]:
    """Return one finished run per seed, one other run for each seed without, and what is to be said of the rest."""
    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.recipe.seed, []).append(run)
    finished: list[Run] = []
    unfinished: list[Run] = []
    notes: list[str] = []
    for seed, same in sorted(by_seed.items()):
        done = [run for run in same if run.finished]
        first = done[0] if done else max(same, key=lambda run: len(run.rows))
        (finished if done else unfinished).append(first)
        alike: dict[str, list[Run]] = {}
        for run in done:
            alike.setdefault(repr(_settings(run)), []).append(run)
        notes += [_repeated(seed, same_stages) for same_stages in alike.values() if len(same_stages) > 1]
        leads = [same_stages[0] for same_stages in alike.values()]
        if any(_trained(run) != _trained(first) for run in leads):
            notes.append(_repeated(seed, leads))
        notes += [f"{run.folder.path} does not count: {run.state}" for run in same if not run.finished]
    return finished, unfinished, notes


def _repeated(seed: int, runs: Sequence[Run]) -> str:
    """Say of finished runs of one recipe and seed whether they agree; the first one counts."""
    places = ", ".join(str(run.folder.path) for run in runs)
    values = [_compared(run) for run in runs]
    if all(value == values[0] for value in values):
        return f"seed {seed} was run {len(runs)} times with the same result, which counts once: {places}"
    shown = ", ".join("–" if (value := run.last("accuracy")) is None else f"{value:.2f}" for run in runs)
    return (
        f"seed {seed} was run {len(runs)} times with DIFFERENT results (accuracy {shown}), of which only the first "
        f"counts: {places}"
    )


def _compared(run: Run) -> list[Any]:
    stages = (run.result or {}).get("stages") or {}
    return [_trained(run), *([values.get(k) for k in _METRICS] for values in stages.values())]


def _trained(run: Run) -> list[Any]:
    return [run.last(name) for name in _METRICS]


def notes(groups: Sequence[Group], empty: Iterable[Path] = ()) -> list[str]:
    """Return what a reader must know: folders that do not count, and why."""
    several = len(groups) > 1
    lines = [f"{g.label}: {note}" if several else note for g in groups for note in g.notes]
    return [*lines, *(f"{path} is empty: no run began there" for path in empty)]


_LONGEST = 80  # longest label, in characters, that fits a legend and a table


def _labels(recipes: list[Row], settings: list[Row]) -> list[str]:
    """Label groups by method and settings that differ; if that is too long, only by what distinguishes the runs."""
    methods = [str(recipe["method"]) for recipe in recipes]
    full = [_label(method, own) for method, own in zip(methods, settings, strict=True)]
    if max(map(len, full), default=0) <= _LONGEST:
        return full
    distinguishing: dict[str, list[str]] = {}
    for method in dict.fromkeys(methods):
        rivals = [own for name, own in zip(methods, settings, strict=True) if name == method]
        keys = distinguishing[method] = []
        for k in dict.fromkeys(k for own in rivals for k in own):
            if _distinct(rivals, [*keys, k]) > _distinct(rivals, keys):
                keys.append(k)
    return [
        _label(m, {k: own[k] for k in distinguishing[m] if k in own}) for m, own in zip(methods, settings, strict=True)
    ]


def _distinct(settings: list[Row], keys: list[str]) -> int:
    return len({repr([own.get(k) for k in keys]) for own in settings})


def _label(name: str, details: Row) -> str:
    words = [f"{k.removeprefix('method.')}={v}" for k, v in details.items()]
    return f"{name} ({', '.join(words)})" if words else name


def unlabeled_keys(groups: Sequence[Group]) -> list[str]:
    """Return the settings in which groups differ and that their labels leave out."""
    keys = dict.fromkeys(k for g in groups for k in g.settings)
    return [
        k
        for k in keys
        if any(k in g.settings and f"{k.removeprefix('method.')}={g.settings[k]}" not in g.label for g in groups)
    ]


def table_rows(groups: Iterable[Group]) -> list[TableRow]:
    """Return one row per group, followed by one for each of its stages."""
    out: list[TableRow] = []
    for g in groups:
        metrics = [{name: run.last(name) for name in _METRICS} for run in g.runs]
        out.append(_table_row(g.label, g.runs, metrics, uncounted=_uncounted(g.unfinished)))
        for label, found in g.stages.items():
            metrics = [run.result["stages"][stage] for run, stage in found if run.result]
            out.append(_table_row(f"{g.label} + {label}", [run for run, _ in found], metrics))
    return out


def _uncounted(runs: Sequence[Run]) -> str:
    """Count runs without a result by why they have none."""
    counts = {word: sum(run.status == word for run in runs) for word in ("unfinished", "diverged")}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


_METRICS = ("accuracy", "personal", "per_class")


def _table_row(label: str, runs: list[Run], metrics: list[Row], uncounted: str = "") -> TableRow:
    return TableRow(
        label=label,
        accuracy=[f["accuracy"] for f in metrics if f["accuracy"] is not None],
        personal=[f["personal"] for f in metrics if f["personal"] is not None],
        seeds=[run.recipe.seed for run in runs],
        uncounted=uncounted,
    )


def mean_std(values: Sequence[float]) -> str:
    """Format the mean and the sample standard deviation (n − 1) over seeds.

    >>> mean_std([1.0, 2.0, 3.0]), mean_std([2.5]), mean_std([])
    ('2.00 ± 1.00', '2.50', '–')
    """
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean
