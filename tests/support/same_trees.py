"""Trees that must be the same: names, shapes, types and numbers."""

from __future__ import annotations

import torch

from fedhead.core.tree.tree import Tree


def assert_same(found: Tree, expected: Tree, atol: float = 0.0, rtol: float = 0.0, equal_nan: bool = False) -> None:
    """Require the same entries in both trees, none missing and none more, bit for bit unless tolerances are given."""
    mine, theirs = found.leaves(), expected.leaves()
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(
            mine[name], value, atol=atol, rtol=rtol, equal_nan=equal_nan, msg=lambda text, name=name: f"{name}: {text}"
        )
