"""Checks of a table or sweep file: its keys, axes and choices."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from fedhead.core.system.errors import unknown


def refuse_unknown(where: str, given: Mapping[str, Any], known: Set[str]) -> None:
    """Raise an error for an unknown key that names the nearest known one."""
    for key in given:
        if key not in known:
            raise unknown(f"key in {where}", str(key), known)


def check_layers(name: str, content: Mapping[str, Any], known: Set[str]) -> None:
    """Check the keys of choices and rules, and that conditions name existing axes and choices.

    Args:
        name: Name of the table in errors.
        content: Content of the table, with its axes.
        known: Valid keys of a choice or a rule.

    Raises:
        BadInput: With the unknown name and the nearest known one.
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
