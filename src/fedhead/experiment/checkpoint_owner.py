"""Whose checkpoint a file is: the settings of its run, which it names, so that another run's is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhead.core.schedules import make_schedule
from fedhead.experiment.recipe import Recipe
from fedhead.experiment.run_files import ENVIRONMENT, damaged, no_record

SETTINGS = "settings"  # the entry of a checkpoint's metadata
_OBJECT = "own "  # before the name of what was given in Python, in contrast to a recipe's keys
_MOST = 8  # settings that an error names
_GIVEN = ("model.", "method.", _OBJECT)  # are there only where they were given, a recipe's other keys always


def settings(recipe: Recipe, objects: Mapping[str, str]) -> dict[str, Any]:
    """Return what decides the training of a run, as JSON can hold it.

    Rounds and stages that a run is extended by are no part of it, nor is where its records go.

    Args:
        recipe: What is run.
        objects: What was given in Python and no recipe can hold, in a line each.
    """
    later = ("rounds", "stages", "loggers")
    keys = {k: v for k, v in recipe.flat().items() if k not in later and not k.startswith("stage.")}
    if make_schedule(recipe.lr_schedule).needs_rounds:
        keys["rounds"] = recipe.rounds
    own = {f"{_OBJECT}{name}": line for name, line in objects.items()}
    found: dict[str, Any] = json.loads(json.dumps(keys | own, default=str))
    return found


def check(metadata: Mapping[str, Any], own: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint that is not of this run; one that was written before they named their run is not refused.

    A key that only one of two versions knows was added, renamed or removed. One that this version has removed is not
    compared; one that it has added must have its default value, unless it is a renamed one.

    Args:
        metadata: The checkpoint's.
        own: What `settings` returns for this run.
        path: The checkpoint.

    Raises:
        DamagedRun: With the settings that differ.
    """
    stored = metadata.get(SETTINGS, {})
    if not isinstance(stored, dict):
        raise damaged(f"{path} is damaged: it does not name the settings of its run")
    if any(key.startswith(_OBJECT) for key in stored) and not (path.parent / ENVIRONMENT).exists():
        raise no_record(path.parent)
    others = [key for key in dict.fromkeys([*stored, *own]) if _differs(key, stored, own)] if stored else []
    if others:
        said = [f"its {key} is {_value(key, stored)} (this run's is {_value(key, own)})" for key in others[:_MOST]]
        more = [f"{len(others) - _MOST} more"] if len(others) > _MOST else []
        raise damaged(f"{path} is of another run: {', '.join([*said, *more])}")


def _differs(key: str, stored: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    if key.startswith(_GIVEN) or (key in stored and key in own):
        return json.dumps(stored.get(key)) != json.dumps(own.get(key))
    if key in stored or key == "rounds":  # rounds are stored only for schedules that need them: lr_schedule is compared
        return False
    removed = [value for name, value in stored.items() if name not in own and not name.startswith(_GIVEN)]
    same = [json.dumps(value) for value in (Recipe().flat()[key], *removed)]
    return json.dumps(own[key]) not in same


def _value(key: str, found: Mapping[str, Any]) -> str:
    return repr(found[key]) if key in found else "not given"
