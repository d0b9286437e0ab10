"""Trees: named tensors that add, subtract and scale; everything that is sent or stored is a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedhead.core.tree.foreach import clone_all, zeros_like_all


class Tree(dict[str, Any]):
    """A dictionary of tensors (or of nested trees) with vector arithmetic.

    >>> a = Tree(w=torch.tensor([1.0, 2.0]), b=torch.tensor(3.0))
    >>> (a + 2 * a).sq()
    tensor(126.)
    """

    # -- arithmetic -------------------------------------------------------------------------------
    def map(self, fn: Callable[..., Any], *others: Any) -> Self:
        """Apply a function to every tensor.

        Args:
            fn: Called with a tensor and the corresponding entries of `others`.
            *others: Trees with the same names, or numbers.

        Returns:
            A tree with the same names.

        Raises:
            KeyError: If a tree in `others` has other names.
        """
        for other in others:
            if isinstance(other, Tree) and other.keys() != self.keys():
                odd = sorted(set(other) ^ set(self))
                raise KeyError(f"trees with different names: {', '.join(odd[:4])} are in only one of them")
        out: dict[str, Any] = {}
        for name, value in self.items():
            rest = [other[name] if isinstance(other, Tree) else other for other in others]
            out[name] = value.map(fn, *rest) if isinstance(value, Tree) else fn(value, *rest)
        return self._like(out)

    def __add__(self, other: Any) -> Self:
        return self.map(torch.add, other)

    def __sub__(self, other: Any) -> Self:
        return self.map(torch.sub, other)

    def __mul__(self, other: Any) -> Self:
        return self.map(torch.mul, other)

    def __rmul__(self, other: Any) -> Self:
        return self.map(torch.mul, other)

    def __truediv__(self, other: Any) -> Self:
        return self.map(torch.div, other)

    def __neg__(self) -> Self:
        return self.map(torch.neg)

    def zeros(self) -> Self:
        """Return a tree with the same names and shapes, filled with zeros."""
        made = iter(zeros_like_all(list(self.tensors())))
        return self.map(lambda t: next(made))

    def detach(self) -> Self:
        """Detach every tensor from the autograd graph."""
        return self.map(torch.Tensor.detach)

    def copy(self) -> Self:
        """Return a tree of the same tensors, whose entries (and those of its trees) may be replaced alone."""
        return self._like({n: value.copy() if isinstance(value, Tree) else value for n, value in self.items()})

    def clone(self) -> Self:
        """Return a copy that shares no memory."""
        made = iter(clone_all(list(self.tensors())))
        return self.map(lambda t: next(made))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Apply `Tensor.to` to every tensor.

        Args:
            *args: Arguments of `Tensor.to`.
            **kwargs: Arguments of `Tensor.to`.

        Returns:
            A tree with the same names.
        """
        return self.map(lambda t: t.to(*args, **kwargs))

    def dot(self, other: Tree) -> Tensor:
        """Return the inner product with another tree.

        Args:
            other: A tree with the same names.

        Returns:
            A number.

        Raises:
            KeyError: If the names differ.
        """
        mine, theirs = self._vector(), other._vector()
        if mine.keys() != theirs.keys():
            raise KeyError(f"trees with different names: {', '.join(sorted(mine.keys() ^ theirs.keys())[:4])}")
        return cast(Tensor, sum((t * theirs[n]).sum() for n, t in mine.items()))

    def sq(self) -> Tensor:
        """Return the squared Euclidean norm."""
        return cast(Tensor, sum(t.square().sum() for t in self._vector().values()))

    def _vector(self) -> dict[str, Tensor]:
        return self.leaves()

    # -- names ------------------------------------------------------------------------------------
    def __missing__(self, name: object) -> Any:
        there = ", ".join(map(repr, list(self)[:12])) + (", …" if len(self) > 12 else "")
        raise KeyError(f"no entry {name!r}; the entries are {there or 'none'}")

    def part(self, *prefixes: str) -> Self:
        """Return the entries under dotted prefixes.

        Args:
            *prefixes: Such as "classifier", for "classifier.weight" and "classifier.bias".

        Returns:
            The entries whose names start with one of the prefixes.
        """
        return self._like({n: t for n, t in self.items() if under(n, prefixes)})

    def without(self, *prefixes: str) -> Self:
        """Return the entries under none of the dotted prefixes.

        Args:
            *prefixes: Such as "classifier".

        Returns:
            The entries whose names start with none of the prefixes.
        """
        return self._like({n: t for n, t in self.items() if not under(n, prefixes)})

    def replace(self, other: Mapping[str, Any] | None = None, /, **entries: Any) -> Self:
        """Return a copy with entries replaced or added.

        Args:
            other: Entries by name.
            **entries: Further entries.

        Returns:
            The copy.
        """
        return self._like({**self, **(other or {}), **entries})

    def leaves(self) -> dict[str, Tensor]:
        """Return every tensor under its full name, with the levels joined by '/'.

        >>> list(Tree(model=Tree(w=torch.zeros(1))).leaves())
        ['model/w']
        """
        return dict(self._walk(""))

    def tensors(self) -> Iterator[Tensor]:
        """Return all tensors, those of nested trees included."""
        for value in self.values():
            if isinstance(value, Tree):
                yield from value.tensors()
            else:
                yield value

    def _walk(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.items():
            if isinstance(value, Tree):
                yield from value._walk(f"{prefix}{name}/")
            else:
                yield prefix + name, value

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(t.nbytes for t in self.tensors())

    def numel(self) -> int:
        """Return the number of elements in all tensors."""
        return sum(t.numel() for t in self.tensors())

    def finite(self) -> bool:
        """Return whether every number is finite."""
        return all(bool(torch.isfinite(t).all()) for t in self.tensors() if t.is_floating_point())

    def _like(self, entries: dict[str, Any]) -> Self:
        return type(self)(entries)


class Weights(Tree):
    """The weights of a model: its parameters together with its buffers (running statistics).

    Sums and means cover both, so that an average of models also averages BatchNorm's statistics; norms, inner products
    and gradients cover the parameters only.

    Args:
        entries: Tensors by name.
        buffers: Names of the entries that are buffers.
    """

    buffers: frozenset[str]

    def __init__(self, entries: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), buffers: Iterable[str] = ()):
        super().__init__(entries)
        self.buffers = frozenset(buffers) & self.keys()

    @property
    def params(self) -> Tree:
        """The trained parameters."""
        return Tree({n: t for n, t in self.items() if n not in self.buffers})

    @property
    def stats(self) -> Tree:
        """The buffers, such as running means and variances."""
        return Tree({n: t for n, t in self.items() if n in self.buffers})

    def replace(self, other: Mapping[str, Any] | None = None, /, **entries: Any) -> Self:
        """Return a copy with the given entries replaced or added; buffers of `other` stay buffers."""
        more = other.buffers if isinstance(other, Weights) else frozenset()
        return type(self)({**self, **(other or {}), **entries}, self.buffers | more)

    def _vector(self) -> dict[str, Tensor]:
        return {n: t for n, t in self.items() if n not in self.buffers}

    def _like(self, entries: dict[str, Any]) -> Self:
        return type(self)(entries, self.buffers)


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    """Return whether a dotted name is one of the prefixes or begins with one of them."""
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def stack(trees: list[Tree]) -> Tree:
    """Stack trees along a new leading axis, one row per tree."""
    return trees[0].map(lambda *ts: torch.stack(ts), *trees[1:])


def cat(trees: Sequence[Tree]) -> Tree:
    """Join trees along the leading axis of their tensors.

    >>> cat([Tree(a=torch.tensor([1.0, 2.0])), Tree(a=torch.tensor([3.0]))])["a"]
    tensor([1., 2., 3.])
    """
    return trees[0].map(lambda *ts: torch.cat(ts), *trees[1:])


def unstack(tree: Tree, count: int) -> list[Tree]:
    """Split a stacked tree into its first `count` rows."""
    rows = tree.map(Tensor.unbind)  # a tuple of rows in place of each tensor: faster than one row at a time
    return [rows.map(itemgetter(i)) for i in range(count)]


def total(trees: list[Tree]) -> Tree:
    """Return the sum of trees, added in their order.

    Args:
        trees: Trees with the same names, shapes and types.

    Raises:
        KeyError: If the names differ.

    >>> total([Tree(a=torch.tensor([1.0, 2.0])), Tree(a=torch.tensor([3.0, 4.0]))])["a"]
    tensor([4., 6.])
    """
    out = trees[0].clone()
    mine = out.leaves()
    for tree in trees[1:]:
        theirs = tree.leaves()
        if theirs.keys() != mine.keys():
            odd = sorted(theirs.keys() ^ mine.keys())
            raise KeyError(f"trees with different names: {', '.join(odd[:4])} are in only one of them")
        torch._foreach_add_(list(mine.values()), [theirs[name] for name in mine])  # one kernel instead of many
    return out


# Let torch.func (vmap, grad) treat trees as containers; no other place uses pytree's internals.
pytree.register_pytree_node(
    Tree,
    lambda t: (list(t.values()), tuple(t.keys())),
    lambda values, names: Tree(zip(names, values, strict=True)),
    serialized_type_name="fedhead.Tree",
)
pytree.register_pytree_node(
    Weights,
    # a tuple: equal sets may print their names in different orders, and what is compiled is found by the printed form
    lambda t: (list(t.values()), (tuple(t.keys()), tuple(n for n in t if n in t.buffers))),
    lambda values, context: Weights(zip(context[0], values, strict=True), context[1]),
    serialized_type_name="fedhead.Weights",
)
