"""Whether hooks have left alone what they were given, seen without copying or reading a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from fedhead.core.tree import Tree


class Unchanged:
    """Remembers which tensors trees hold, and how often each was written to.

    Args:
        trees: The trees, by how a hook's code would write them.

    >>> import torch
    >>> server = Tree(model=Tree(w=torch.zeros(2)))
    >>> before = Unchanged({"server": server})
    >>> before.changed() is None
    True
    >>> _ = server["model"]["w"].add_(1)
    >>> before.changed()
    "server['model']['w']"
    """

    def __init__(self, trees: Mapping[str, Tree]):
        self._trees = trees
        self._before = {name: (value, _writes(value)) for name, value in self._entries()}

    def changed(self) -> str | None:
        """Return the first entry that was written to, replaced, added or removed since; None if there is none."""
        now = dict(self._entries())
        for name, (value, writes) in self._before.items():
            if now.get(name) is not value or _writes(value) != writes:
                return name
        return next((name for name in now if name not in self._before), None)

    def _entries(self) -> Iterator[tuple[str, Any]]:
        for name, tree in self._trees.items():
            yield from _entries(name, tree)


def _entries(path: str, tree: Tree) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Tree):
            yield from _entries(f"{path}[{name!r}]", value)
        else:
            yield f"{path}[{name!r}]", value


def _writes(value: Any) -> int:
    """Return how often a tensor was written to; one that was made in inference mode does not count it."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0
