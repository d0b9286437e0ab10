"""Tables of cells: every combination of one choice per axis, on top of common recipe keys.

A sweep is such a table. So is a paper table, which also has published values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhead.recipes.recipe import Recipe, expand_calls

_COMMON_PARAMETERS = {"head", "feature_layer", "dim", "scale", "projected"}  # parameters of every architecture


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Cell of a table, with the recipe keys of its runs."""

    name: str
    choices: Mapping[str, str]  # axis -> choice
    keys: Mapping[str, Any]  # flat recipe keys, without stages
    stage: str | None
    parameters: Mapping[str, Any]  # of the stage
    seeds: Sequence[int] = (0,)
    folders: Sequence[Path] = ()  # search path of its files (`method: file.py:Name`)

    def recipe(self, seed: int, split: int | None = None) -> Recipe:
        """Return the recipe of one run of the cell, including its stage.

        Args:
            seed: Seed of weights and batches, and of the partition unless the table sets one.
            split: Seed of the partition; None: the table's default.

        Raises:
            BadInput: The keys are no valid recipe.
        """
        flat = {**self.keys, **({} if split is None else {"partition_seed": split}), "seed": seed}
        stages = flat.get("stages", [])
        if self.stage is not None and self.stage not in stages:
            flat |= {"stages": [*stages, self.stage]}
            flat |= {f"stage.{self.stage}.{word}": value for word, value in self.parameters.items()}
        return Recipe.from_flat(flat, self.folders)


@dataclass(frozen=True)
class Table:
    """Table with axes, rules and skipped combinations."""

    name: str
    title: str
    content: Mapping[str, Any]
    folders: Sequence[Path] = ()  # search path of files that cells name

    def axes(self) -> list[str]:
        """Return the axes, in the order of the columns."""
        return list(self.content["axes"])

    def combinations(self) -> Iterator[dict[str, str]]:
        """Yield one choice per axis for each cell."""
        axes: dict[str, dict[str, Any]] = self.content["axes"]
        for names in itertools.product(*axes.values()):
            choices = dict(zip(axes, names, strict=True))
            if not any(matches(rule, choices) for rule in self.content.get("skip", [])):
                yield choices

    def layers(self, choices: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the layers of a cell on top of the table's base: its choices, then the matching rules."""
        layers = [self.content["axes"][axis][choice] or {} for axis, choice in choices.items()]
        return layers + [rule for rule in self.content.get("rules", []) if matches(rule["when"], choices)]

    def cells(self) -> Sequence[Cell]:
        """Return the cells."""
        return [self._cell(choices) for choices in self.combinations()]

    def _cell(self, choices: dict[str, str]) -> Cell:
        layers = self.layers(choices)
        keys: dict[str, Any] = dict(self.content.get("base", {}))
        for layer in layers:
            keys = overlay(keys, layer.get("set", {}))
        stage = last_of(layers, "stage", None)
        kept, parameters = split_stage(keys, stage)
        return Cell(
            name=" ".join(choices.values()),
            choices=choices,
            keys=kept,
            stage=stage,
            parameters=parameters,
            seeds=seed_list(last_of(layers, "seeds", self.content["seeds"])),
            folders=self.folders,
        )


def last_of(layers: Sequence[Mapping[str, Any]], key: str, default: Any) -> Any:
    """Return a key's value in the last of the mappings that have it, or the default."""
    return next((layer[key] for layer in reversed(layers) if key in layer), default)


def seed_list(seeds: int | Sequence[int]) -> list[int]:
    """Return a list of seeds from a number or a list."""
    return list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]


def split_stage(keys: Mapping[str, Any], stage: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a cell's keys without parameters of unused stages, and the parameters of its stage."""
    prefix = f"stage.{stage}."
    kept = tuple(f"stage.{name}." for name in keys.get("stages", ()))  # stages of every run
    return (
        {k: v for k, v in keys.items() if not k.startswith("stage.") or k.startswith(kept)},
        {k.removeprefix(prefix): v for k, v in keys.items() if k.startswith(prefix)},
    )


def matches(when: Mapping[str, Any], choices: Mapping[str, str]) -> bool:
    """Return whether choices satisfy a condition on axes."""
    return all(choices[axis] in ([wanted] if isinstance(wanted, str) else wanted) for axis, wanted in when.items())


def overlay(keys: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Override recipe keys; a changed model or method drops the parameters of the old one."""
    over = expand_calls(over)
    for part, stays in (("model", _COMMON_PARAMETERS), ("method", frozenset[str]())):
        if over.get(part, keys.get(part)) != keys.get(part):
            keys = {k: v for k, v in keys.items() if not k.startswith(f"{part}.") or k.split(".")[1] in stays}
    return {**keys, **over}
