"""Tables: runs that differ by their seed alone form one line, with mean and deviation."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhead.core.errors import BadInput
from fedhead.engine.metrics import Row
from fedhead.experiment.recipe import Recipe
from fedhead.experiment.run_folder import RunFolder


@dataclass(frozen=True)
class Run:
    """What a report needs of one run."""

    folder: RunFolder
    rows: list[Row]
    result: Row | None

    @property
    def recipe(self) -> Recipe:
        """What was asked for."""
        return self.folder.recipe

    def last(self, name: str) -> Any:
        """The latest figure of a name, None if it was never measured."""
        return next((row[name] for row in reversed(self.rows) if row.get(name) is not None), None)


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seed alone."""

    label: str
    runs: list[Run]
    settings: Row  # its values of the keys in which the groups differ, the method's and the stages' own aside
    stage_settings: Row  # the same of its stages' parameters


@dataclass(frozen=True)
class Line:
    """A line of the table: one method, perhaps with a stage after it, over its seeds."""

    label: str
    accuracy: list[float]
    personal: list[float]
    per_class: list[list[float | None]]
    seeds: list[int]
    megabytes: float | None  # sent and received in all, the mean over seeds
    client_kilobytes: float | None  # sent and received by one client in one round
    seconds: float | None


def read(paths: Iterable[str | Path]) -> list[Run]:
    """Runs by their folders; a folder of run folders stands for all of them."""
    found: list[Run] = []
    for path in map(Path, paths):
        if not path.exists():
            raise BadInput(f"{path} is not there: give run folders, such as runs/*")
        inner = [path] if (path / "config.yaml").exists() else sorted(p.parent for p in path.glob("**/config.yaml"))
        if not inner:
            raise BadInput(f"{path} holds no run: give run folders, such as runs/*")
        for place in inner:
            folder = RunFolder.open(place)
            found.append(Run(folder, folder.metrics(), folder.result()))
    return found


def group(runs: Sequence[Run]) -> list[Group]:
    """Runs put together that differ by their seed alone, labeled by the method and by what else differs."""
    random: dict[str, list[Run]] = {}
    for run in runs:
        keys = {k: v for k, v in run.recipe.flat().items() if k not in ("seed", "seeds")}
        random.setdefault(repr(keys), []).append(run)
    recipes = [runs[0].recipe.flat() for runs in random.values()]
    names = dict.fromkeys(k for recipe in recipes for k in recipe)
    differing = [k for k in names if len({repr(r.get(k)) for r in recipes}) > 1 and k not in _OWN]
    settings = [{k: r[k] for k in differing if k in r and not k.startswith("stage.")} for r in recipes]
    return [
        Group(label, runs, own, {k: r[k] for k in differing if k in r and k.startswith("stage.")})
        for label, runs, own, r in zip(_labels(recipes, settings), random.values(), settings, recipes, strict=True)
    ]


_OWN = ("method", "stages", "seed", "seeds")  # the first two stand in labels anyway
_LONGEST = 80  # characters that a legend and a table still have space for


def _labels(recipes: list[Row], settings: list[Row]) -> list[str]:
    """The method and all that differs; where that gets long, only what tells runs of one method apart."""
    methods = [str(recipe["method"]) for recipe in recipes]
    whole = [_label(method, own) for method, own in zip(methods, settings, strict=True)]
    if max(map(len, whole), default=0) <= _LONGEST:
        return whole
    telling: dict[str, list[str]] = {}
    for method in dict.fromkeys(methods):
        rivals = [own for name, own in zip(methods, settings, strict=True) if name == method]
        keys = telling[method] = []
        for k in dict.fromkeys(k for own in rivals for k in own):
            if _distinct(rivals, [*keys, k]) > _distinct(rivals, keys):
                keys.append(k)
    return [_label(m, {k: own[k] for k in telling[m] if k in own}) for m, own in zip(methods, settings, strict=True)]


def _distinct(settings: list[Row], keys: list[str]) -> int:
    return len({repr([own.get(k) for k in keys]) for own in settings})


def _label(name: str, details: Row) -> str:
    words = [f"{k.removeprefix('method.')}={v}" for k, v in details.items()]
    return f"{name} ({', '.join(words)})" if words else name


def unsaid(groups: Sequence[Group]) -> list[str]:
    """The keys in which groups differ and that their labels leave out."""
    keys = dict.fromkeys(k for g in groups for k in g.settings)
    return [
        k
        for k in keys
        if any(k in g.settings and f"{k.removeprefix('method.')}={g.settings[k]}" not in g.label for g in groups)
    ]


def lines(groups: Iterable[Group]) -> list[Line]:
    """Each group's line, followed by one for every stage."""
    out: list[Line] = []
    for g in groups:
        out.append(_line(g.label, g.runs, [{name: run.last(name) for name in _FIGURES} for run in g.runs], whole=True))
        for stage in g.runs[0].recipe.stages:
            finished = [run for run in g.runs if run.result and stage in run.result["stage_metrics"]]
            figures = [run.result["stage_metrics"][stage] for run in finished if run.result]
            if finished:
                prefix = f"stage.{stage}."
                own = {k.removeprefix(prefix): v for k, v in g.stage_settings.items() if k.startswith(prefix)}
                out.append(_line(f"{g.label} + {_label(stage, own)}", finished, figures, whole=False))
    return out


_FIGURES = ("accuracy", "personal", "per_class")


def _line(label: str, runs: list[Run], figures: list[Row], whole: bool) -> Line:
    traffic = [sum(row["bytes_up"] + row["bytes_down"] for row in run.rows) / 1e6 for run in runs]
    took_part = sum(row.get("participants", 0) for run in runs for row in run.rows)
    seconds = [sum(row["seconds"] for row in run.rows) for run in runs]
    return Line(
        label=label,
        accuracy=[f["accuracy"] for f in figures if f["accuracy"] is not None],
        personal=[f["personal"] for f in figures if f["personal"] is not None],
        per_class=[f["per_class"] for f in figures if f["per_class"]],
        seeds=[run.recipe.seed for run in runs],
        megabytes=statistics.fmean(traffic) if whole else None,
        client_kilobytes=1e3 * sum(traffic) / took_part if whole and took_part else None,
        seconds=statistics.fmean(seconds) if whole else None,
    )


def spread(values: Sequence[float]) -> str:
    """Mean and deviation over seeds (the sample's, n − 1), in words for a table.

    >>> spread([1.0, 2.0, 3.0]), spread([2.5]), spread([])
    ('2.00 ± 1.00', '2.50', '–')
    """
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def class_means(line: Line) -> list[float | None]:
    """The accuracy on each class, the mean over seeds."""
    out: list[float | None] = []
    for column in zip(*line.per_class, strict=True):
        there = [v for v in column if v is not None]
        out.append(statistics.fmean(there) if there else None)
    return out
