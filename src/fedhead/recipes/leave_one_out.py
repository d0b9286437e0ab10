"""Leave-one-site-out: `test: leave-one-site-out` in a recipe is one run per client, tested on that client's samples.

A single run's recipe says `leave-one-site-out(3)`: client 3 is left out.
"""

from __future__ import annotations

import re

from fedhead.core.system.errors import BadInput
from fedhead.recipes.recipe import Recipe

ALL = "leave-one-site-out"
_ONE = re.compile(rf"{ALL}\((\d+)\)")


def is_asked(recipe: Recipe) -> bool:
    """Return whether a recipe leaves out one client, or each in turn."""
    return isinstance(recipe.test, str) and recipe.test.startswith(ALL)


def left_out(recipe: Recipe) -> int | None:
    """Return the client that a single run leaves out; None: all take part.

    Raises:
        BadInput: If the recipe stands for several runs, or is no such recipe.
    """
    if not is_asked(recipe):
        return None
    if recipe.client_test is not None:
        raise BadInput(f"client_test: {recipe.client_test} would have no effect: with test={ALL} clients have none")
    found = _ONE.fullmatch(str(recipe.test))
    if found is None:
        raise BadInput(
            f"test: {recipe.test} is one run per client: carry it out with fedhead run, or leave one out by its "
            f"number, as in test='{ALL}(0)'"
        )
    return int(found[1])
