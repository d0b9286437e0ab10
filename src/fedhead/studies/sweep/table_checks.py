"""Checks of the file of a table or a sweep: its keys, and the axes and choices that it names."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from fedhead.core.system.errors import unknown


def refuse_unknown(where: str, given: Mapping[str, Any], known: Set[str]) -> None:
    """Refuse keys that are not known, naming the nearest one."""
    for key in given:
        if key not in known:
            raise unknown(f"key in {where}", str(key), known)


def check_layers(name: str, content: Mapping[str, Any], known: Set[str]) -> None:
    """Refuse unknown keys of choices and rules, and conditions on axes or choices that there are not.

    Args:
        name: What the table is called in an error.
        content: The table, with its axes.
        known: The keys that a choice or a rule may have.

    Raises:
        BadInput: Naming what is unknown, and the nearest that is not.
    """
    axes = content["axes"]
    for axis, choices in axes.items():
        for choice, layer in choices.items():
            refuse_unknown(f"{name}, {axis} {choice}", layer or {}, known)
    for rule in content.get("rules", []):
        refuse_unknown(f"{name}, a rule", rule, known | {"when"})
    conditions = [rule["when"] for rule in content.get("rules", []) if "when" in rule]
    for when in [*conditions, *content.get("skip", [])]:
        for axis, wanted in when.items():
            if axis not in axes:
                raise unknown(f"axis of {name}", axis, axes)
            for choice in [wanted] if isinstance(wanted, str) else wanted:
                if choice not in axes[axis]:
                    raise unknown(f"choice of {name}'s axis {axis}", choice, axes[axis])
