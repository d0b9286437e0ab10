"""Tables of the papers, run by name: `fedhead reproduce ccvr/table2`.

A table is a YAML file, recipes/<paper>/<table>.yaml:

    # CCVR, Table 2: what the table shows, in one line
    paper: ccvr                      which rows of published.csv ...
    table: 2                         ... its figures are found in
    seeds: {full: 3, small: 1}       how many, unless --seeds says otherwise
    metric: accuracy                 as published.csv calls it: accuracy, generalization or personalization
    deviation: seeds                 what ± is taken over: seeds (the default) or clients
    base: {rounds: 100, lr: 0.01}    flat recipe keys, as in any recipe
    axes:                            every combination of one choice an axis is a cell
      data:
        cifar10-0.5:                 a choice, by which --cells can pick
          set: {dataset: cifar10, partition: "dirichlet(0.5, capped)"}    recipe keys
          small: {partition: dirichlet(0.5)}                              recipe keys at --scale small, last of all
          find: {dataset: cifar10, partition: dirichlet(0.5)}             the columns of its published figure
      method:
        fedavg: {set: {method: fedavg}, find: {method: fedavg}}
      stage:
        before: {find: {stage: none}}
        ccvr: {stage: ccvr, find: {stage: ccvr}}        the figure after a stage; its parameters are stage.ccvr.*
    rules:                           what depends on several axes; a later rule wins
      - {when: {data: [cifar10-0.5], method: [fedprox]}, set: {method.mu: 0.001}}
    small: {dataset: digits, rounds: 5}                 recipe keys at --scale small, on top of all that is above
    skip: [{data: [cinic10], stage: [ccvr]}]            combinations that the table does not have

A choice or a rule may also give `metric`, `deviation` and `value`: the dotted place of our figure in a run's (or a
stage's) results, where it is not the metric's own. Cells that train alike share one run folder, and their stages
start from its checkpoint, so a cell that differs only in its stage or metric costs no training.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fedhead.core.errors import BadInput, unknown
from fedhead.experiment.recipe import RECIPES, Recipe, read_yaml

Scale = Literal["full", "small"]
_KEYS = {"paper", "table", "seeds", "metric", "deviation", "value", "base", "axes", "rules", "small", "skip"}
_CHOICE = {"set", "small", "find", "stage", "metric", "deviation", "value"}
_COMMON = {"head", "feature_layer", "dim", "scale", "projected"}  # model parameters that every architecture takes
# Where our figure stands in a run's result, by the name that the paper's metric has in published.csv.
_RUN = {"accuracy": "accuracy", "generalization": "accuracy_mean", "personalization": "personal"}
_STAGE = {"accuracy": "accuracy", "generalization": "accuracy", "personalization": "personal"}


@dataclass(frozen=True)
class Cell:
    """One figure of a table, and how it is made."""

    name: str  # the choices, such as "cifar10-0.5 fedavg ccvr"
    choices: Mapping[str, str]  # axis -> choice
    keys: Mapping[str, Any]  # the recipe's flat keys, without stages
    stage: str | None
    parameters: Mapping[str, Any]  # of the stage
    metric: str
    value: str  # dotted place in the result
    deviation: str
    find: Mapping[str, str]

    def recipe(self, seed: int) -> Recipe:
        """The training behind the cell."""
        return Recipe.from_flat({**self.keys, "seed": seed})


@dataclass(frozen=True)
class Table:
    """A table of a paper, as its YAML file says."""

    name: str
    title: str
    content: Mapping[str, Any]

    def seeds(self, scale: Scale) -> int:
        """How many seeds the paper used, or a small version needs."""
        return int(self.content.get("seeds", {}).get(scale, 3 if scale == "full" else 1))

    def axes(self) -> list[str]:
        """The axes, in the order of the columns."""
        return list(self.content["axes"])

    def cells(self, scale: Scale = "full", pick: Sequence[str] = ()) -> list[Cell]:
        """The table's cells; with `pick` those that fit one of the texts, all words of it.

        A word that is a choice of the table fits that choice alone (fedavg is not fedavgm), any other one is sought
        in the cell's name.
        """
        every = list(self._all(scale))
        if not pick:
            return every
        known = {choice for cell in every for choice in cell.choices.values()}

        def fits(cell: Cell, word: str) -> bool:
            return word in (cell.choices.values() if word in known else cell.name)

        chosen = [cell for cell in every if any(all(fits(cell, w) for w in text.split()) for text in pick)]
        if not chosen:
            raise unknown(f"cell of {self.name}", ",".join(pick), [cell.name for cell in every])
        return chosen

    def _all(self, scale: Scale) -> Iterator[Cell]:
        axes: dict[str, dict[str, Any]] = self.content["axes"]
        for names in itertools.product(*axes.values()):
            choices = dict(zip(axes, names, strict=True))
            if any(_holds(rule, choices) for rule in self.content.get("skip", [])):
                continue
            layers = [axes[axis][choice] or {} for axis, choice in choices.items()]
            layers += [rule for rule in self.content.get("rules", []) if _holds(rule["when"], choices)]
            yield self._cell(choices, layers, scale)

    def _cell(self, choices: dict[str, str], layers: list[dict[str, Any]], scale: Scale) -> Cell:
        last: dict[str, Any] = {"metric": "accuracy", "deviation": "seeds", **self.content}
        for layer in layers:
            last |= {k: v for k, v in layer.items() if k in ("metric", "deviation", "value", "stage")}
        keys: dict[str, Any] = dict(self.content.get("base", {}))
        find: dict[str, str] = {}
        for layer in layers:
            keys = _lay(keys, layer.get("set", {}))
            find |= {k: str(v) for k, v in layer.get("find", {}).items()}
        if scale == "small":
            for small in [self.content.get("small", {}), *(layer.get("small", {}) for layer in layers)]:
                keys = _lay(keys, small)
        stage = last.get("stage")
        own = f"stage.{stage}."
        return Cell(
            name=" ".join(choices.values()),
            choices=choices,
            keys={k: v for k, v in keys.items() if not k.startswith("stage.")},
            stage=stage,
            parameters={k.removeprefix(own): v for k, v in keys.items() if k.startswith(own)},
            metric=last["metric"],
            value=last.get("value") or (_STAGE if stage else _RUN)[last["metric"]],
            deviation=last["deviation"],
            find={"paper": str(self.content["paper"]), "table": str(self.content["table"]), "metric": last["metric"]}
            | find,
        )


def _holds(when: Mapping[str, Any], choices: Mapping[str, str]) -> bool:
    return all(choices[axis] in ([wanted] if isinstance(wanted, str) else wanted) for axis, wanted in when.items())


def _lay(keys: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with others on top; another model or method takes its own parameters along."""
    for part, stays in (("model", _COMMON), ("method", frozenset[str]())):
        if over.get(part, keys.get(part)) != keys.get(part):
            keys = {k: v for k, v in keys.items() if not k.startswith(f"{part}.") or k.split(".")[1] in stays}
    return {**keys, **over}


# -- reading ------------------------------------------------------------------------------------------
def names() -> dict[str, Path]:
    """The tables that are there, such as ccvr/table2."""
    return {f"{p.parent.name}/{p.stem}": p for p in sorted(RECIPES.glob("*/*.yaml"))}


def load(name: str) -> Table:
    """A table by its name, with every key checked."""
    known = names()
    if name not in known:
        raise unknown("table", name, known)
    text = known[name].read_text(encoding="utf-8")
    return parse(name, text)


def parse(name: str, text: str) -> Table:
    """A table from its YAML text."""
    content = read_yaml(text, name)
    if not isinstance(content, dict):
        raise BadInput(f"{name}: a table is a list of keys ({', '.join(sorted(_KEYS))})")
    _refuse_unknown(name, content, _KEYS)
    for key in ("paper", "table", "axes"):
        if key not in content:
            raise BadInput(f"{name}: the key {key!r} is missing")
    axes = content["axes"]
    for axis, choices in axes.items():
        for choice, layer in choices.items():
            _refuse_unknown(f"{name}, {axis} {choice}", layer or {}, _CHOICE)
    for rule in content.get("rules", []):
        _refuse_unknown(f"{name}, a rule", rule, _CHOICE | {"when"})
    for when in [*(rule["when"] for rule in content.get("rules", [])), *content.get("skip", [])]:
        for axis, wanted in when.items():
            if axis not in axes:
                raise unknown(f"axis of {name}", axis, axes)
            for choice in [wanted] if isinstance(wanted, str) else wanted:
                if choice not in axes[axis]:
                    raise unknown(f"choice of {name}'s axis {axis}", choice, axes[axis])
    first = text.partition("\n")[0]
    return Table(name, first.lstrip("# ") if first.startswith("#") else name, content)


def _refuse_unknown(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    for key in given:
        if key not in known:
            raise unknown(f"key in {where}", str(key), known)


# -- published figures --------------------------------------------------------------------------------
@cache
def published_rows() -> tuple[Mapping[str, str], ...]:
    """Every figure of the papers' tables, a row each."""
    import csv

    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def published(cell: Cell) -> tuple[float, float | None] | None:
    """The published mean and deviation of a cell, or None if the paper gives no figure for it."""
    found = [row for row in published_rows() if all(row[k] == v for k, v in cell.find.items())]
    if len(found) > 1:
        raise BadInput(
            f"{cell.name}: {len(found)} published figures fit {dict(cell.find)}; name more columns in `find`"
        )
    mean = _number(found[0]["mean"]) if found else None
    return None if mean is None else (mean, _number(found[0]["std"]))


def _number(text: str) -> float | None:
    """A published figure; sizes such as 22 KB in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?: ([KM])B)?", text.strip())
    return float(match[1]) * {None: 1, "K": 1024, "M": 1024**2}[match[2]] if match else None
