"""Paper tables: sweeps with published values, `fedhead reproduce ccvr/table2`.

A table is a YAML file, papers/<paper>/<table>.yaml:

    # CCVR, Table 2: one-line description of the table
    paper: ccvr                      columns `paper` and `table` of published.csv,
    table: 2                         which select the published values
    seeds: {full: 3, small: 1}       number of seeds from 0, or a list of seeds; --seeds overrides it
    metric: accuracy                 name in published.csv: accuracy, generalization or personalization
    deviation: seeds                 ± is the deviation over seeds (the default) or clients
    base: {rounds: 100, lr: 0.01}    flat recipe keys, as in any recipe
    axes:                            every combination of one choice per axis is a cell
      data:
        cifar10-0.5:                 name of a choice, for --cells
          set: {dataset: cifar10, partition: "dirichlet(0.5, capped)"}    recipe keys
          small: {partition: dirichlet(0.5)}                              recipe keys at --scale small, applied last
          find: {dataset: cifar10, partition: dirichlet(0.5)}             columns of its published value
      method:
        fedavg: {set: {method: fedavg}, find: {method: fedavg}}
      stage:
        before: {find: {stage: none}}
        ccvr: {stage: ccvr, find: {stage: ccvr}}        the result after a stage; its parameters are stage.ccvr.*
    rules:                           keys that depend on several axes; a later rule wins
      - {when: {data: [cifar10-0.5], method: [fedprox]}, set: {method.mu: 0.001}}
    small: {dataset: digits, rounds: 5}                 recipe keys at --scale small, after all keys above
    skip: [{data: [cinic10], stage: [ccvr]}]            combinations that the table does not have
    variants:                        other interpretations of the paper, measured with --variants NAME
      tukey-none: {when: {stage: ccvr}, set: {stage.ccvr.tukey: none}}
      longer: {set: {rounds: 200}, small: {rounds: 10}}                     at --scale small its `small` comes last
      extra-epoch: {when: {method: fedavg}, stage: finetune}                the result after another stage
      public-code: {all_of: [tukey-none, extra-epoch]}                      all of them, each where it applies

A table with `extends: table2` takes over that table of its paper, with its own keys on top; an axis can be a list of
choices of the other table, as in `data: [cifar10-0.5]`. See `_extended`.

A choice or a rule may also set `seeds` (at full scale), `metric`, `deviation` and `value`: the dotted path of our
value in a run's or a stage's results, if it differs from that of the metric. Cells with the same training share one
run folder, and their stages start from its checkpoint, so a cell that differs only in its stage or metric needs no
training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from fedhead.core.system.errors import BadInput, unknown
from fedhead.core.system.yaml_text import read_yaml
from fedhead.studies.sweep.table_checks import check_layers, refuse_unknown
from fedhead.studies.sweep.tables import Cell, Table, last_of, matches, overlay, seed_list, split_stage

Scale = Literal["full", "small"]
_LAST_WINS = ("metric", "deviation", "value", "stage")  # the last layer with such a key wins
_TABLE_KEYS = {"paper", "table", "extends", "seeds", "base", "axes", "rules", "small", "skip", "variants"}
_TABLE_KEYS |= {"metric", "deviation", "value"}
_CHOICE_KEYS = {"set", "small", "find", "seeds", *_LAST_WINS}
_SEED_KEYS = ("seed", "seeds", "partition_seed")  # set by --seeds and --splits
# Dotted path of a cell's value in a run's result, by the name of the metric in published.csv.
_RUN_VALUES = {"accuracy": "accuracy", "generalization": "accuracy_mean", "personalization": "personal"}
_STAGE_VALUES = {"accuracy": "accuracy", "generalization": "accuracy", "personalization": "personal"}


@dataclass(frozen=True, kw_only=True)
class PaperCell(Cell):
    """Cell of a paper table, with the path of its value and the filter of its published value."""

    labels: Mapping[str, str]  # axis -> choice; at small scale with its data set, such as digits-for-cifar100
    metric: str
    value: str  # dotted path of the value in the result
    deviation: str
    find: Mapping[str, str]
    overrides: Sequence[str] = ()  # key=value changes of the table's keys
    scale: Scale = "full"

    def override(self, changes: Mapping[str, Any]) -> PaperCell:
        """Return the cell with overridden recipe keys; parameters of unused stages are ignored.

        Raises:
            BadInput: For keys that set seeds and splits.
        """
        prefix = f"stage.{self.stage}."
        for key in changes:
            if key in (*_SEED_KEYS, "stages"):
                option = {"stages": "--cells or --variants", "partition_seed": "--splits"}.get(key, "--seeds")
                raise BadInput(f"{key}: a table's {key} can't be set by key=value; use {option}")
        mine = {k: v for k, v in changes.items() if not k.startswith("stage.") or k.startswith(prefix)}
        parameters = {k.removeprefix(prefix): v for k, v in mine.items() if k.startswith(prefix)}
        texts = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in mine.items()]
        return replace(
            self,
            keys=overlay(dict(self.keys), {k: v for k, v in mine.items() if not k.startswith("stage.")}),
            parameters={**self.parameters, **parameters},
            overrides=[*self.overrides, *texts],
        )

    def end_in(self, stage: str | None) -> PaperCell:
        """Return the cell measured after another stage with default parameters; None: without a stage."""
        value = (_STAGE_VALUES if stage else _RUN_VALUES)[self.metric]
        changed = [*self.overrides, f"stage={stage or 'none'}"]
        return replace(self, stage=stage, parameters={}, value=value, overrides=changed)


@dataclass(frozen=True)
class PaperTable(Table):
    """Paper table, read from its YAML file."""

    def cells(self, scale: Scale = "full", pick: Sequence[str] = ()) -> list[PaperCell]:
        """Return the cells; with `pick`, those that match all words of one of the texts.

        A word that is a choice of the table matches only that choice (fedavg does not match fedavgm). Any other word is
        searched in the cell's name.

        Raises:
            BadInput: A text matches no cell.
        """
        every = [self.cell(choices, scale) for choices in self.combinations()]
        if not pick:
            return every
        known = {choice for cell in every for choice in cell.choices.values()}

        def fits(cell: PaperCell, word: str) -> bool:
            return word in (cell.choices.values() if word in known else cell.name)

        def picks(cell: PaperCell, text: str) -> bool:
            return all(fits(cell, word) for word in text.split())

        for text in pick:  # a text without a match is an error
            if not any(picks(cell, text) for cell in every):
                page = f"fedhead reproduce {self.name} --dry-run"
                raise unknown(f"cell of {self.name}", text, [cell.name for cell in every], page)
        return [cell for cell in every if any(picks(cell, text) for text in pick)]

    def variants(self) -> dict[str, Mapping[str, Any]]:
        """Return the variants, other interpretations of the paper: `when`, `set`, `small` and `stage`, or `all_of`."""
        return dict(self.content.get("variants", {}))

    def varied(self, cells: Sequence[PaperCell], names: Sequence[str]) -> list[PaperCell]:
        """Apply variants to the cells that they concern, and return the changed cells.

        Raises:
            BadInput: A variant is unknown, concerns no cell, or is given twice.
        """
        out: list[PaperCell] = []
        for number, name in enumerate(names):
            if name not in self.variants():
                raise unknown(f"variant of {self.name}", name, self.variants())
            if name in names[:number]:
                raise BadInput(f"{self.name}: the variant {name} is given twice; give it once")
            changed_cells = [varied for cell in cells if (varied := self.as_in(cell, name)) is not None]
            if not changed_cells:  # a variant without cells is an error
                raise BadInput(f"{self.name}: the variant {name} concerns none of the picked cells")
            out += changed_cells
        return out

    def as_in(self, cell: PaperCell, name: str) -> PaperCell | None:
        """Apply a variant to a cell; None if the variant does not concern it."""
        variants = self.variants()
        parts = [variants[part] for part in variants[name].get("all_of", [name]) if part in variants]
        concerning = [part for part in parts if matches(part.get("when", {}), cell.choices)]
        return reduce(_as_in, concerning, cell) if concerning else None

    def cell(self, choices: Mapping[str, str], scale: Scale = "full") -> PaperCell:
        """Return the cell of one choice per axis, without variants and overrides."""
        layers = [self.content, *self.layers(choices)]
        keys: dict[str, Any] = dict(self.content.get("base", {}))
        find = {k: str(self.content[k]) for k in ("paper", "table") if k in self.content}
        metric = last_of(layers, "metric", "accuracy")
        find["metric"] = metric
        for layer in layers[1:]:
            keys = overlay(keys, layer.get("set", {}))
            find |= {k: str(v) for k, v in layer.get("find", {}).items()}
        seeds = self.content.get("seeds", {}).get(scale, 3 if scale == "full" else 1)
        if scale == "small":
            for layer in layers:
                keys = overlay(keys, layer.get("small", {}))
        else:
            seeds = last_of(layers[1:], "seeds", seeds)
        stage = last_of(layers, "stage", None)
        labels = self._labels(choices, str(keys["dataset"]), scale)
        kept, parameters = split_stage(keys, stage)
        return PaperCell(
            name=" ".join(labels.values()),
            choices=dict(choices),
            labels=labels,
            keys=kept,
            stage=stage,
            parameters=parameters,
            metric=metric,
            value=last_of(layers, "value", None) or (_STAGE_VALUES if stage else _RUN_VALUES)[metric],
            deviation=last_of(layers, "deviation", "seeds"),
            find=find,
            seeds=seed_list(seeds),
            folders=self.folders,
            scale=scale,
        )

    def _labels(self, choices: Mapping[str, str], data: str, scale: Scale) -> dict[str, str]:
        """Return the labels of the choices; at small scale they name the data set that replaces the paper's."""
        labels = dict(choices)
        for axis, choice in choices.items() if scale == "small" else ():
            expected = (self.content["axes"][axis][choice] or {}).get("find", {}).get("dataset", data)
            if expected != data:
                labels[axis] = f"{data}-for-{choice}"
        return labels


def _as_in(cell: PaperCell, variant: Mapping[str, Any]) -> PaperCell:
    """Apply a variant to a cell."""
    ending = cell.end_in(variant["stage"]) if "stage" in variant else cell
    small = variant.get("small", {}) if cell.scale == "small" else {}
    return ending.override({**variant.get("set", {}), **small})


# -- reading ------------------------------------------------------------------------------------------
def names() -> dict[str, Path]:
    """Return the files of all tables; keys are names such as ccvr/table2."""
    return {f"{path.parent.name}/{path.stem}": path for path in sorted(Path(__file__).parents[1].glob("*/*.yaml"))}


def load(name: str) -> PaperTable:
    """Load and validate a table."""
    known = names()
    if name not in known:
        raise unknown("table", name, known)
    text = known[name].read_text(encoding="utf-8")
    return parse(name, text)


def parse(name: str, text: str) -> PaperTable:
    """Parse a table from YAML."""
    content = read_yaml(text, name)
    if not isinstance(content, dict):
        raise BadInput(f"{name}: a table is a list of keys ({', '.join(sorted(_TABLE_KEYS))})")
    refuse_unknown(name, content, _TABLE_KEYS)
    for key in ("paper", "table", "axes"):
        if key not in content:
            raise BadInput(f"{name}: the key {key!r} is missing")
    parent = load(f"{content['paper']}/{content['extends']}").content if "extends" in content else {"axes": {}}
    content = _extended(name, content, parent)
    check_layers(name, content, _CHOICE_KEYS)
    first = text.partition("\n")[0]
    return PaperTable(name, first.lstrip("# ") if first.startswith("#") else name, content)


def _extended(name: str, content: Mapping[str, Any], parent: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's content on top of that of the table it extends.

    Keys of `base` and `small`, and variants of the same name, replace the parent's. Rules come after the parent's. The
    parent's rules and variants are limited to the table's axes and choices; those that concern none are dropped, and so
    is `skip`.
    """
    axes = {axis: _choices(name, axis, parent, choices) for axis, choices in content["axes"].items()}
    rules = [limited for rule in parent.get("rules", []) if (limited := _limited(rule, axes))]
    variants = {key: limited for key, layer in parent.get("variants", {}).items() if (limited := _limited(layer, axes))}
    return {
        **{key: value for key, value in parent.items() if key != "skip"},
        **content,
        "base": {**parent.get("base", {}), **content.get("base", {})},
        "small": {**parent.get("small", {}), **content.get("small", {})},
        "axes": axes,
        "rules": [*rules, *content.get("rules", [])],
        "variants": {**variants, **content.get("variants", {})},
    }


def _choices(name: str, axis: str, parent: Mapping[str, Any], choices: Any) -> dict[str, Any]:
    """Return an axis' choices; a list names those of the parent."""
    if isinstance(choices, dict):
        return choices
    known = parent["axes"].get(axis, {})
    for choice in choices:
        if choice not in known:
            raise unknown(f"choice of {name}'s axis {axis}", choice, known)
    return {choice: known[choice] for choice in choices}


def _limited(layer: Mapping[str, Any], axes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a rule or a variant for these axes; None if no choice satisfies its condition."""
    when = {
        axis: [choice for choice in ([wanted] if isinstance(wanted, str) else wanted) if choice in axes.get(axis, ())]
        for axis, wanted in layer.get("when", {}).items()
    }
    return {**layer, "when": when} if all(when.values()) else None
