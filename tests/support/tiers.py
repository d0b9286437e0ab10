"""Tiers of a test's parameters: quick (`make test`), or slow (`make test-slow`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return the parameters of a test: the chosen ones are quick, the others are marked slow.

    Args:
        values: All values, in order.
        chosen: Those that represent the others in the quick tier.

    Raises:
        ValueError: If a chosen value is not among them.
    """
    values = list(values)
    if missing := [value for value in chosen if value not in values]:
        raise ValueError(f"{missing[0]!r} is no parameter of this test, choose among {values}")
    return [value if value in chosen else pytest.param(value, marks=pytest.mark.slow) for value in values]
