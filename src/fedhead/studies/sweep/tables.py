"""Tables of the papers, run by name: `fedhead reproduce ccvr/table2`.

A table is a YAML file, recipes/<paper>/<table>.yaml:

    # CCVR, Table 2: what the table shows, in one line
    paper: ccvr                      which rows of published.csv ...
    table: 2                         ... its published values are found in
    seeds: {full: 3, small: 1}       how many, from 0, or the list of them, unless --seeds says otherwise
    priority: 1                      its place where `fedhead reproduce --next` chooses; the lowest comes first
    metric: accuracy                 as published.csv calls it: accuracy, generalization or personalization
    deviation: seeds                 what ± is taken over: seeds (the default) or clients
    base: {rounds: 100, lr: 0.01}    flat recipe keys, as in any recipe
    axes:                            every combination of one choice an axis is a cell
      data:
        cifar10-0.5:                 a choice, by which --cells can pick
          set: {dataset: cifar10, partition: "dirichlet(0.5, capped)"}    recipe keys
          small: {partition: dirichlet(0.5)}                              recipe keys at --scale small, last of all
          find: {dataset: cifar10, partition: dirichlet(0.5)}             the columns of its published value
      method:
        fedavg: {set: {method: fedavg}, find: {method: fedavg}}
      stage:
        before: {find: {stage: none}}
        ccvr: {stage: ccvr, find: {stage: ccvr}}        the result after a stage; its parameters are stage.ccvr.*
    rules:                           what depends on several axes; a later rule wins
      - {when: {data: [cifar10-0.5], method: [fedprox]}, set: {method.mu: 0.001}}
    small: {dataset: digits, rounds: 5}                 recipe keys at --scale small, on top of all that is above
    skip: [{data: [cinic10], stage: [ccvr]}]            combinations that the table does not have
    variants:                        other readings of the paper, measured with --variants NAME
      tukey-none: {when: {stage: ccvr}, set: {stage.ccvr.tukey: none}}
      longer: {set: {rounds: 200}, small: {rounds: 10}}                     at --scale small its `small` comes last
      extra-epoch: {when: {method: fedavg}, stage: finetune}                the result after another stage
      public-code: {all_of: [tukey-none, extra-epoch]}                      several at once, where each concerns a cell

A choice or a rule may also give `seeds` (at full scale), `priority`, `metric`, `deviation` and `value`: the dotted
place of our value in a run's (or a stage's) results, where it is not the metric's own. Cells that train alike share
one run folder, and their stages start from its checkpoint, so a cell that differs only in its stage or metric costs no
training.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from fedhead.core.system.errors import BadInput, unknown
from fedhead.recipes.recipe import RECIPES, Recipe, expand_calls
from fedhead.recipes.yaml_text import read_yaml
from fedhead.studies.sweep.table_checks import check_layers, refuse_unknown

Scale = Literal["full", "small"]
_LAST_WINS = ("metric", "deviation", "value", "stage", "priority")  # the last layer that gives one of these decides it
_TABLE_KEYS = {"paper", "table", "seeds", "base", "axes", "rules", "small", "skip", "variants", *_LAST_WINS} - {"stage"}
_CHOICE_KEYS = {"set", "small", "find", "seeds", *_LAST_WINS}
_SEED_KEYS = ("seed", "seeds", "partition_seed")  # what --seeds and --splits decide
LOWEST_PRIORITY = 9  # the priority of a table that has none
_COMMON_PARAMETERS = {"head", "feature_layer", "dim", "scale", "projected"}  # of every architecture
# Where a cell's value is found in a run's result, by the name that the paper's metric has in published.csv.
_RUN_VALUES = {"accuracy": "accuracy", "generalization": "accuracy_mean", "personalization": "personal"}
_STAGE_VALUES = {"accuracy": "accuracy", "generalization": "accuracy", "personalization": "personal"}
ACCURACIES = tuple(_RUN_VALUES)  # the metrics that are in per cent


@dataclass(frozen=True)
class Cell:
    """One cell of a table, and how its value is made."""

    name: str  # the choices, such as "cifar10-0.5 fedavg ccvr"
    choices: Mapping[str, str]  # axis -> choice
    labels: Mapping[str, str]  # axis -> the choice, as it was run: digits-for-cifar100 where small data stands for it
    keys: Mapping[str, Any]  # the recipe's flat keys, without stages
    stage: str | None
    parameters: Mapping[str, Any]  # of the stage
    metric: str
    value: str  # dotted place in the result
    deviation: str
    find: Mapping[str, str]
    seeds: Sequence[int] = (0,)  # the paper's
    priority: int = LOWEST_PRIORITY
    overrides: Sequence[str] = ()  # key=value, what was changed of the table's own settings
    folders: Sequence[Path] = ()  # where files that it names (`method: file.py:Name`) are looked for
    scale: Scale = "full"

    def recipe(self, seed: int, split: int | None = None) -> Recipe:
        """Return the training behind the cell.

        Args:
            seed: Decides weights and batches, and the split where the table does not fix one.
            split: Seed of the partition; None: the table's own.
        """
        own = {} if split is None else {"partition_seed": split}
        return Recipe.from_flat({**self.keys, **own, "seed": seed}, self.folders)

    def override(self, changes: Mapping[str, Any]) -> Cell:
        """Return the cell with other recipe keys; parameters of a stage that it does not have leave it as it is.

        Raises:
            BadInput: For keys that decide which seeds and splits are drawn.
        """
        own = f"stage.{self.stage}."
        for key in changes:
            if key in (*_SEED_KEYS, "stages"):
                option = {"stages": "--cells or --variants", "partition_seed": "--splits"}.get(key, "--seeds")
                raise BadInput(f"{key}: a table's {key} can't be set by key=value; use {option}")
        mine = {k: v for k, v in changes.items() if not k.startswith("stage.") or k.startswith(own)}
        parameters = {k.removeprefix(own): v for k, v in mine.items() if k.startswith(own)}
        texts = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in mine.items()]
        return replace(
            self,
            keys=overlay(dict(self.keys), {k: v for k, v in mine.items() if not k.startswith("stage.")}),
            parameters={**self.parameters, **parameters},
            overrides=[*self.overrides, *texts],
        )

    def end_in(self, stage: str | None) -> Cell:
        """Return the cell with its value measured after another stage, with that stage's defaults; None: after none."""
        value = (_STAGE_VALUES if stage else _RUN_VALUES)[self.metric]
        changed = [*self.overrides, f"stage={stage or 'none'}"]
        return replace(self, stage=stage, parameters={}, value=value, overrides=changed)


@dataclass(frozen=True)
class Table:
    """A table of a paper, as its YAML file says."""

    name: str
    title: str
    content: Mapping[str, Any]
    folders: Sequence[Path] = ()  # where files that its cells name are looked for

    def axes(self) -> list[str]:
        """The axes, in the order of the columns."""
        return list(self.content["axes"])

    def cells(self, scale: Scale = "full", pick: Sequence[str] = ()) -> list[Cell]:
        """The table's cells; with `pick` those that fit one of the texts, all words of it.

        A word that is a choice of the table fits that choice alone (fedavg is not fedavgm), any other one is sought
        in the cell's name.

        Raises:
            BadInput: One of the texts fits no cell.
        """
        every = list(self._all(scale))
        if not pick:
            return every
        known = {choice for cell in every for choice in cell.choices.values()}

        def fits(cell: Cell, word: str) -> bool:
            return word in (cell.choices.values() if word in known else cell.name)

        def picks(cell: Cell, text: str) -> bool:
            return all(fits(cell, word) for word in text.split())

        for text in pick:  # one that picks nothing is a slip, which the others must not hide
            if not any(picks(cell, text) for cell in every):
                raise unknown(f"cell of {self.name}", text, [cell.name for cell in every])
        return [cell for cell in every if any(picks(cell, text) for text in pick)]

    def variants(self) -> dict[str, Mapping[str, Any]]:
        """Other readings of the paper by name: which cells (`when`), `set`, `small`, `stage`; or several (`all_of`)."""
        return dict(self.content.get("variants", {}))

    def varied(self, cells: Sequence[Cell], names: Sequence[str]) -> list[Cell]:
        """Return, of these cells, those that the variants concern, each as each variant has it.

        Raises:
            BadInput: There is no such variant, one concerns none of the cells, or one is named twice.
        """
        out: list[Cell] = []
        for number, name in enumerate(names):
            if name not in self.variants():
                raise unknown(f"variant of {self.name}", name, self.variants())
            if name in names[:number]:
                raise BadInput(f"{self.name}: the variant {name} is given twice; give it once")
            found = [varied for cell in cells if (varied := self.as_in(cell, name)) is not None]
            if not found:  # a slip, which the others must not hide
                raise BadInput(f"{self.name}: the variant {name} concerns none of the picked cells")
            out += found
        return out

    def as_in(self, cell: Cell, name: str) -> Cell | None:
        """Return a cell as a variant has it; None if the variant does not concern it."""
        parts = [self.variants()[part] for part in self.variants()[name].get("all_of", [name])]
        concerning = [part for part in parts if _matches(part.get("when", {}), cell.choices)]
        return reduce(_as_in, concerning, cell) if concerning else None

    def cell(self, choices: Mapping[str, str], scale: Scale = "full") -> Cell:
        """Return the table's own cell of one choice per axis."""
        axes: dict[str, dict[str, Any]] = self.content["axes"]
        layers = [axes[axis][choice] or {} for axis, choice in choices.items()]
        layers += [rule for rule in self.content.get("rules", []) if _matches(rule["when"], choices)]
        return self._cell(dict(choices), layers, scale)

    def _all(self, scale: Scale) -> Iterator[Cell]:
        axes: dict[str, dict[str, Any]] = self.content["axes"]
        for names in itertools.product(*axes.values()):
            choices = dict(zip(axes, names, strict=True))
            if any(_matches(rule, choices) for rule in self.content.get("skip", [])):
                continue
            yield self.cell(choices, scale)

    def _cell(self, choices: dict[str, str], layers: list[dict[str, Any]], scale: Scale) -> Cell:
        last: dict[str, Any] = {"metric": "accuracy", "deviation": "seeds", **self.content}
        for layer in layers:
            last |= {k: v for k, v in layer.items() if k in _LAST_WINS}
        keys: dict[str, Any] = dict(self.content.get("base", {}))
        find: dict[str, str] = {}
        for layer in layers:
            keys = overlay(keys, layer.get("set", {}))
            find |= {k: str(v) for k, v in layer.get("find", {}).items()}
        if scale == "small":
            for small in [self.content.get("small", {}), *(layer.get("small", {}) for layer in layers)]:
                keys = overlay(keys, small)
        seeds = self.content.get("seeds", {}).get(scale, 3 if scale == "full" else 1)
        for layer in layers if scale == "full" else []:
            seeds = layer.get("seeds", seeds)
        named = {axis: (self.content["axes"][axis][choice] or {}).get("find", {}) for axis, choice in choices.items()}
        data = str(keys.get("dataset", Recipe.dataset))
        labels = {
            axis: choice if scale == "full" or named[axis].get("dataset", data) == data else f"{data}-for-{choice}"
            for axis, choice in choices.items()
        }
        stage = last.get("stage")
        own = f"stage.{stage}."
        kept = tuple(f"stage.{name}." for name in keys.get("stages", ()))  # of the stages that every run has
        places = {k: str(self.content[k]) for k in ("paper", "table") if k in self.content}
        return Cell(
            name=" ".join(labels.values()),
            choices=choices,
            labels=labels,
            keys={k: v for k, v in keys.items() if not k.startswith("stage.") or k.startswith(kept)},
            stage=stage,
            parameters={k.removeprefix(own): v for k, v in keys.items() if k.startswith(own)},
            metric=last["metric"],
            value=last.get("value") or (_STAGE_VALUES if stage else _RUN_VALUES)[last["metric"]],
            deviation=last["deviation"],
            find={**places, "metric": last["metric"], **find},
            seeds=list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds],
            priority=int(last.get("priority", LOWEST_PRIORITY)),
            folders=self.folders,
            scale=scale,
        )


def _matches(when: Mapping[str, Any], choices: Mapping[str, str]) -> bool:
    return all(choices[axis] in ([wanted] if isinstance(wanted, str) else wanted) for axis, wanted in when.items())


def _as_in(cell: Cell, variant: Mapping[str, Any]) -> Cell:
    """Return a cell as a variant has it."""
    ending = cell.end_in(variant["stage"]) if "stage" in variant else cell
    small = variant.get("small", {}) if cell.scale == "small" else {}
    return ending.override({**variant.get("set", {}), **small})


def overlay(keys: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with others on top; another model or method takes its own parameters along."""
    over = expand_calls(over)
    for part, stays in (("model", _COMMON_PARAMETERS), ("method", frozenset[str]())):
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
        raise BadInput(f"{name}: a table is a list of keys ({', '.join(sorted(_TABLE_KEYS))})")
    refuse_unknown(name, content, _TABLE_KEYS)
    for key in ("paper", "table", "axes"):
        if key not in content:
            raise BadInput(f"{name}: the key {key!r} is missing")
    check_layers(name, content, _CHOICE_KEYS)
    first = text.partition("\n")[0]
    return Table(name, first.lstrip("# ") if first.startswith("#") else name, content)
