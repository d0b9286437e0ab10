"""Whose checkpoint a file is: the settings of its run, which it names, so that another run's is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhead.core.system.log import warn_once
from fedhead.core.training.schedules import make_schedule
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.run_folder_schema import ENVIRONMENT, damaged, no_record

SETTINGS = "settings"  # the entry of a checkpoint's metadata
_OBJECT = "own "  # before the name of what was given in Python, in contrast to a recipe's keys
_MOST = 8  # settings that an error names
_ROUNDS = "rounds"
_GIVEN = ("model.", "method.", _OBJECT)  # are there only where they were given, a recipe's other keys always


def settings(recipe: Recipe, objects: Mapping[str, str]) -> dict[str, Any]:
    """Return what decides the training of a run, as JSON can hold it.

    Rounds and stages that a run is extended by are no part of it, nor is where its records go.

    Args:
        recipe: What is run.
        objects: What was given in Python and no recipe can hold, in a line each.
    """
    later = (_ROUNDS, "stages", "loggers")
    keys = {k: v for k, v in recipe.flat().items() if k not in later and not k.startswith("stage.")}
    if make_schedule(recipe.lr_schedule).needs_rounds:
        keys[_ROUNDS] = recipe.rounds
    own = {f"{_OBJECT}{name}": line for name, line in objects.items()}
    found: dict[str, Any] = json.loads(json.dumps(keys | own, default=str))
    return found


def check(metadata: Mapping[str, Any], own: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint that is not of this run; one that was written before they named their run is not refused.

    A key that only one of two versions knows was added, renamed or removed. One that this version has removed can't be
    compared, and is named in a warning; one that it has added must have its default value, unless it is a renamed one,
    which has the value of one that was removed.

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
    if not stored:
        return
    removed = {k: v for k, v in stored.items() if k not in own and not k.startswith(_GIVEN) and k != _ROUNDS}
    others = _different(stored, own, removed)
    if others:
        said = [f"its {key} is {_value(key, stored)} (this run's is {_value(key, own)})" for key in others[:_MOST]]
        more = [f"{len(others) - _MOST} more"] if len(others) > _MOST else []
        raise damaged(f"{path} is of another run: {', '.join([*said, *more])}")
    if removed:
        named = ", ".join(f"{key}={value!r}" for key, value in list(removed.items())[:_MOST])
        rest = f" and {len(removed) - _MOST} more" if len(removed) > _MOST else ""
        warn_once(
            f"{path} is of another version of fedhead, and was trained with settings that this one does not have: "
            f"{named}{rest}; make sure that the run's recipe says the same in this version's words"
        )


def _different(stored: Mapping[str, Any], own: Mapping[str, Any], removed: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ; each that was removed can have become one other."""
    left = Counter(map(json.dumps, removed.values()))
    defaults = Recipe().flat()
    found: list[str] = []
    for key in dict.fromkeys([*stored, *own]):
        if key.startswith(_GIVEN) or (key in stored and key in own):
            if json.dumps(stored.get(key)) != json.dumps(own.get(key)):
                found.append(key)
        elif key in own and key != _ROUNDS:  # which is stored only for schedules that need it: lr_schedule is compared
            value = json.dumps(own[key])
            if value != json.dumps(defaults[key]):
                if not left[value]:
                    found.append(key)
                left[value] -= 1
    return found


def _value(key: str, found: Mapping[str, Any]) -> str:
    return repr(found[key]) if key in found else "not given"
