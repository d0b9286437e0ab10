"""Search spaces: assignments such as `key=log(1e-4, 1e-1)` define the range of a recipe key."""

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
# Keys that can't be searched, with the alternative.
_FIXED = {
    "validation": "trials are compared on the same samples: give their share by --validation",
    "loggers": "trials log nothing",
}


@dataclass(frozen=True)
class Dimension:
    """Searched key of a recipe.

    Args:
        key: Recipe key.
        kind: `log` or `uniform` (floats between two bounds), `int` (integers), or `choice` (a list of values).
        values: The two bounds, or the list of values.
    """

    key: str
    kind: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.key}={self.kind}({', '.join(map(_text, self.values))})"

    def check(self) -> None:
        """Raise `BadInput` for an empty range or invalid values."""
        if self.kind == "choice":
            if not self.values:
                raise BadInput(f"{self}: there is nothing to choose from; give values, such as choice(0.1, 0.01)")
            if len({_text(value) for value in self.values}) < len(self.values):
                raise BadInput(f"{self}: a value is given twice")
            return
        numbers = int if self.kind == "int" else (int, float)
        if len(self.values) != 2 or not all(isinstance(v, numbers) and not isinstance(v, bool) for v in self.values):
            kind = "whole numbers" if self.kind == "int" else "numbers"
            raise BadInput(f"{self}: give two {kind}, the lowest and the highest, such as {self.kind}(1, 10)")
        low, high = self.values
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise BadInput(f"{self}: the range is empty; give the lowest number first, then the highest")
        if self.kind == "log" and low <= 0:
            raise BadInput(f"{self}: a logarithmic range has positive bounds only; use uniform, or a bound above 0")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read_space(assignments: Sequence[str]) -> tuple[list[Dimension], list[str]]:
    """Separate search ranges from plain assignments.

    Args:
        assignments: Assignments such as `lr=log(1e-4, 1e-1)` and `rounds=5`.

    Returns:
        The dimensions, and the other assignments.

    Raises:
        BadInput: If a dimension or an assignment is invalid, a dimension is empty, or a key is given twice.

    >>> space, others = read_space(["lr=log(1e-4, 1e-1)", "rounds=5", "method=choice(fedavg, fedprox)"])
    >>> [str(dimension) for dimension in space], others
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
    for key, count in Counter([*keys, *(dimension.key for dimension in space)]).items():
        if count > 1:
            raise BadInput(f"{key} is given twice; give one value or one range, such as {key}=choice(…)")
    for dimension in space:
        if dimension.key in _FIXED:
            raise BadInput(f"{dimension}: {dimension.key} can't be searched; {_FIXED[dimension.key]}")
    return space, others


def with_settings(recipe: Recipe, others: Sequence[str]) -> Recipe:
    """Return a recipe with plain assignments applied.

    Args:
        recipe: Recipe.
        others: Assignments such as `rounds=5`.

    Raises:
        BadInput: As `Recipe.override`; for an invalid list, with the syntax of a search.
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
    """Return a recipe with the values of a trial.

    Args:
        recipe: Base recipe of the search.
        values: Values by key. A method, model or list of stages is applied first, then its parameters.
    """
    first = sorted(values, key=lambda key: "." in key)
    return recipe.override([f"{key}={json.dumps(values[key])}" for key in first])
