"""A dataclass whose code has another default, as after an update."""

from __future__ import annotations

from typing import Any

import pytest


def with_default(monkeypatch: pytest.MonkeyPatch, made: type[Any], name: str, new: Any) -> None:
    """Give a field of a dataclass another default until the test ends."""
    defaults, old = made.__init__.__defaults__, getattr(made(), name)  # type: ignore[misc]  # of the class itself
    assert defaults.count(old) == 1, "else another field would have it too"
    monkeypatch.setattr(made.__init__, "__defaults__", tuple(new if value == old else value for value in defaults))
