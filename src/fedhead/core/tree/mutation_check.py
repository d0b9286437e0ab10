"""Check that hooks have left alone what they were given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from fedhead.core.tree.tree import Tree


class Unchanged:
    """Remembers which tensors trees hold, and how often each was written to.

    Copies are compared as well, since torch does not count what is written through `tensor.data` or a numpy array.

    Args:
        trees: The trees, or single tensors, by how a hook's code would write them.

    >>> import torch
    >>> server = Tree(model=Tree(w=torch.zeros(2)))
    >>> before = Unchanged({"server": server})
    >>> before.changed() is None
    True
    >>> _ = server["model"]["w"].add_(1)
    >>> before.changed()
    "server['model']['w']"
    """

    def __init__(self, trees: Mapping[str, Tree | Tensor]):
        self._trees = trees
        self._before = {name: (t, _writes(t), t.detach().clone()) for name, t in self._named()}

    def changed(self) -> str | None:
        """Return the first entry that was written to, replaced, added or removed since; None if there is none."""
        now = dict(self._named())
        for name, t in now.items():
            before, writes, copy = self._before.get(name, (None, 0, t))
            if t is not before or _writes(t) != writes or not _equal(t, copy):
                return name
        return next((name for name in self._before if name not in now), None)

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for path, value in self._trees.items():
            yield from _entries(path, value)


def _entries(path: str, value: Tree | Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a tree, by how a hook's code would write them."""
    if not isinstance(value, Tree):
        yield path, value
        return
    for name, inner in value.items():
        yield from _entries(f"{path}[{name!r}]", inner)


def _equal(t: Tensor, copy: Tensor) -> bool:
    """Return whether a tensor holds what its copy does; what is not a number is equal to itself."""
    return t.shape == copy.shape and bool(((t == copy) | ((t != t) & (copy != copy))).all())


def _writes(t: Tensor) -> int:
    """Return how often a tensor was written to; one that was made in inference mode does not count it."""
    return 0 if t.is_inference() else t._version
