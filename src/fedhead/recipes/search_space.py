"""Search spaces: `key=log(1e-4, 1e-1)` among the assignments of a recipe says what a search may choose from."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedhead.core.components.component_syntax import read_call
from fedhead.core.system.errors import BadInput
from fedhead.recipes.recipe import Recipe, assignment, expand_calls

KINDS = ("log", "uniform", "int", "choice")
# Keys that are the same in all trials, with what to do instead.
_FIXED = {
    "validation": "trials are compared on the same samples: give their share by --validation",
    "seeds": "a trial trains one seed",
    "loggers": "trials log nothing",
}


@dataclass(frozen=True)
class Dimension:
    """One key of a recipe that is searched.

    Args:
        key: The key.
        kind: `log` or `uniform` (numbers between two bounds), `int` (whole numbers), or `choice` (any of some values).
        values: The two bounds, or the values to choose from.
    """

    key: str
    kind: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.key}={self.kind}({', '.join(map(_text, self.values))})"

    def check(self) -> None:
        """Raise `BadInput` for a range that is empty, or values that can't be searched."""
        if self.kind == "choice":
            if not self.values:
                raise BadInput(f"{self}: there is nothing to choose from; give values, such as choice(0.1, 0.01)")
            if len({_text(value) for value in self.values}) < len(self.values):
                raise BadInput(f"{self}: a value is given twice")
            return
        numbers = int if self.kind == "int" else (int, float)
        if len(self.values) != 2 or not all(isinstance(v, numbers) and not isinstance(v, bool) for v in self.values):
            what = "whole numbers" if self.kind == "int" else "numbers"
            raise BadInput(f"{self}: give two {what}, the lowest and the highest, such as {self.kind}(1, 10)")
        low, high = self.values
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise BadInput(f"{self}: the range is empty; give the lowest number first, then the highest")
        if self.kind == "log" and low <= 0:
            raise BadInput(f"{self}: a logarithmic range has positive bounds only; use uniform, or a bound above 0")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read_space(assignments: Sequence[str]) -> tuple[list[Dimension], list[str]]:
    """Separate what is searched from plain assignments.

    Args:
        assignments: Texts such as `lr=log(1e-4, 1e-1)` and `rounds=5`.

    Returns:
        The dimensions, and the other assignments.

    Raises:
        BadInput: If a dimension or an assignment can't be read, or if a dimension is empty, or a key given twice.

    >>> space, others = read_space(["lr=log(1e-4, 1e-1)", "rounds=5", "method=choice(fedavg, fedprox)"])
    >>> [str(one) for one in space], others
    (['lr=log(0.0001, 0.1)', 'method=choice(fedavg, fedprox)'], ['rounds=5'])
    """
    space: list[Dimension] = []
    others: list[str] = []
    for text in assignments:
        if not isinstance(text, str):
            raise BadInput(f"{text!r} is no text: write each key with its range or value, such as 'lr=log(1e-3, 1)'")
        key, equals, value = text.partition("=")
        if not equals or value.partition("(")[0].strip() not in KINDS or not value.rstrip().endswith(")"):
            others.append(text)
            continue
        call = read_call(value, key.strip())
        if call.named:
            raise BadInput(f"{text}: {next(iter(call.named))}= is not known here; write {call.name}(value, value)")
        space.append(Dimension(key.strip(), call.name, call.positional))
        space[-1].check()
    keys = [key for text in others for key in expand_calls(dict([assignment(text)]))]
    for key, count in Counter([*keys, *(one.key for one in space)]).items():
        if count > 1:
            raise BadInput(f"{key} is given twice; give one value or one range, such as {key}=choice(…)")
    for one in space:
        if one.key in _FIXED:
            raise BadInput(f"{one}: {one.key} can't be searched; {_FIXED[one.key]}")
    return space, others


def with_settings(recipe: Recipe, others: Sequence[str]) -> Recipe:
    """Return a recipe with plain assignments on top.

    Args:
        recipe: The recipe.
        others: Texts such as `rounds=5`.

    Raises:
        BadInput: As `Recipe.override`; where a list was not what the key takes, with how to search among values.
    """
    try:
        return recipe.override(others)
    except BadInput as error:
        for key, _, value in (text.partition("=") for text in others):
            if value.lstrip().startswith("[") and str(error).startswith(f"{key.strip()}: ["):
                among = f"{key.strip()}=choice({value.strip()[1:-1]})"
                raise BadInput(f"{error}; to search among values write {among}") from error
        raise


def with_values(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    """Return a recipe with the values that a search has chosen.

    Args:
        recipe: The recipe that is searched.
        values: Values by key. A chosen method, model or list of stages comes first, with its parameters on top.
    """
    first = sorted(values, key=lambda key: "." in key)
    return recipe.override([f"{key}={json.dumps(values[key])}" for key in first])
