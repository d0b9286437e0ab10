"""Detection of in-place changes that hooks make to their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from fedhead.core.tree.tree import Tree


class Unchanged:
    """Snapshot of trees that detects later changes, by tensor identities, version counters and copies.

    Copies are needed since torch does not count writes through `tensor.data` or a numpy array.

    Args:
        trees: Trees or tensors, keyed by their expression in the hook's code.

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
        """Return the first entry that was modified, replaced, added or removed, or None."""
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
    """Yield the tensors of a tree with their expressions in the hook's code."""
    if not isinstance(value, Tree):
        yield path, value
        return
    for name, inner in value.items():
        yield from _entries(f"{path}[{name!r}]", inner)


def _equal(t: Tensor, copy: Tensor) -> bool:
    """Return whether a tensor equals its copy; NaN equals NaN."""
    return t.shape == copy.shape and bool(((t == copy) | ((t != t) & (copy != copy))).all())


def _writes(t: Tensor) -> int:
    """Return the version counter of a tensor; 0 for inference tensors, which have none."""
    return 0 if t.is_inference() else t._version
