"""Whether hooks have left alone what they were given; on a GPU seen without copying or reading a tensor."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedhead.core.tree.tree import Tree


class Unchanged:
    """Remembers which tensors trees hold, and how often each was written to.

    Torch does not count what is written through `tensor.data` or a numpy array: on a CPU copies are compared as well,
    while a GPU would have to be waited for.

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
        self._tensors = self._all()
        self._writes = _writes(self._tensors)
        self._copies = [t.detach().clone() if t.device.type == "cpu" else None for t in self._tensors]

    def changed(self) -> str | None:
        """Return the first entry that was written to or replaced since; None if there is none."""
        now = self._all()
        # names are only put together where there is something to name: this is asked in every round
        same = len(now) == len(self._tensors) and all(map(operator.is_, now, self._tensors))
        if same and _writes(now) == self._writes and all(map(_equal, now, self._copies)):
            return None
        before = zip(self._tensors, self._writes, self._copies, strict=True)
        held = {id(t): (writes, copy) for t, writes, copy in before}
        names = [name for what, tree in self._trees.items() for name in _names(what, tree)]
        for name, t, writes in zip(names, now, _writes(now), strict=True):
            old, copy = held.get(id(t), (None, None))
            if writes != old or not _equal(t, copy):
                return name
        return next(iter(self._trees))  # one was removed

    def _all(self) -> list[Tensor]:
        return [t for tree in self._trees.values() for t in (tree.tensors() if isinstance(tree, Tree) else (tree,))]


def _names(path: str, value: Tree | Tensor) -> Iterator[str]:
    """The tensors of a tree in the order of `Tree.tensors`, as a hook's code would write them."""
    if not isinstance(value, Tree):
        yield path
        return
    for name, inner in value.items():
        yield from _names(f"{path}[{name!r}]", inner)


def _equal(t: Tensor, copy: Tensor | None) -> bool:
    """Whether a tensor holds what its copy does, if there is one; what is not a number is equal to itself."""
    if copy is None or torch.equal(t, copy):
        return True
    return t.shape == copy.shape and bool(((t == copy) | ((t != t) & (copy != copy))).all())


def _writes(tensors: list[Tensor]) -> list[int]:
    """Return how often each tensor was written to; those that were made in inference mode do not count it."""
    try:
        return list(map(operator.attrgetter("_version"), tensors))
    except RuntimeError:
        return [0 if t.is_inference() else t._version for t in tensors]
