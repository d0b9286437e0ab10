"""Trees: named tensors with vector arithmetic; everything that is sent or stored is a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedhead.core.tree.foreach import clone_all, zeros_like_all


class Tree(dict[str, Any]):
    """Dictionary of tensors or nested trees, with vector arithmetic.

    >>> a = Tree(w=torch.tensor([1.0, 2.0]), b=torch.tensor(3.0))
    >>> (a + 2 * a).sq()
    tensor(126.)
    """

    # -- arithmetic -------------------------------------------------------------------------------
    def map(self, fn: Callable[..., Any], *others: Any) -> Self:
        """Apply a function to every tensor.

        Args:
            fn: Function of a tensor and the corresponding entries of `others`.
            *others: Trees with the same names, or numbers.

        Returns:
            Tree with the same names.

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
        zeros = iter(zeros_like_all(list(self.tensors())))
        return self.map(lambda t: next(zeros))

    def detach(self) -> Self:
        """Detach every tensor from the autograd graph."""
        return self.map(torch.Tensor.detach)

    def copy(self) -> Self:
        """Return a copy of the nested dictionaries that shares the tensors."""
        return self._like({n: value.copy() if isinstance(value, Tree) else value for n, value in self.items()})

    def clone(self) -> Self:
        """Return a copy that shares no memory."""
        clones = iter(clone_all(list(self.tensors())))
        return self.map(lambda t: next(clones))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Apply `Tensor.to` to every tensor.

        Args:
            *args: Arguments of `Tensor.to`.
            **kwargs: Arguments of `Tensor.to`.

        Returns:
            Tree with the same names.
        """
        return self.map(lambda t: t.to(*args, **kwargs))

    def dot(self, other: Tree) -> Tensor:
        """Return the inner product with another tree.

        Args:
            other: Tree with the same names.

        Returns:
            Scalar tensor.

        Raises:
            KeyError: If the names differ.
        """
        mine, theirs = self.vector(), other.vector()
        if mine.keys() != theirs.keys():
            raise KeyError(f"trees with different names: {', '.join(sorted(mine.keys() ^ theirs.keys())[:4])}")
        return cast(Tensor, sum((t * theirs[n]).sum() for n, t in mine.items()))

    def sq(self) -> Tensor:
        """Return the squared Euclidean norm."""
        return cast(Tensor, sum(t.square().sum() for t in self.vector().values()))

    def vector(self) -> dict[str, Tensor]:
        """Return the tensors that norms and inner products include, keyed by full name; all by default."""
        return self.leaves()

    # -- names ------------------------------------------------------------------------------------
    def __missing__(self, name: object) -> Any:
        entries = ", ".join(map(repr, list(self)[:12])) + (", …" if len(self) > 12 else "")
        raise KeyError(f"no entry {name!r}; the entries are {entries or 'none'}")

    def part(self, *prefixes: str) -> Self:
        """Return the entries with dotted prefixes.

        Args:
            *prefixes: Prefixes such as "classifier", for "classifier.weight" and "classifier.bias".

        Returns:
            Entries whose names start with one of the prefixes.
        """
        return self._like({n: t for n, t in self.items() if under(n, prefixes)})

    def without(self, *prefixes: str) -> Self:
        """Return the entries without dotted prefixes.

        Args:
            *prefixes: Prefixes such as "classifier".

        Returns:
            Entries whose names start with none of the prefixes.
        """
        return self._like({n: t for n, t in self.items() if not under(n, prefixes)})

    def replace(self, other: Mapping[str, Any] | None = None, /, **entries: Any) -> Self:
        """Return a copy with entries replaced or added.

        Args:
            other: Entries by name.
            **entries: Further entries.

        Returns:
            Copy with the new entries.
        """
        return self._like({**self, **(other or {}), **entries})

    def leaves(self) -> dict[str, Tensor]:
        """Return all tensors keyed by full name, with levels joined by '/'.

        >>> list(Tree(model=Tree(w=torch.zeros(1))).leaves())
        ['model/w']
        """
        return dict(self._walk(""))

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors, including those of nested trees."""
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

    def __repr__(self) -> str:
        """Show names and shapes of up to 12 entries, without values.

        >>> Tree(model=Tree(w=torch.zeros(3, 2)))
        Tree({'model': Tree({'w': [3, 2]})})
        """
        shown = [f"{n!r}: {v if isinstance(v, Tree) else list(v.shape)}" for n, v in list(self.items())[:12]]
        return f"{type(self).__name__}({{{', '.join([*shown, '…'] if len(self) > 12 else shown)}}})"

    def _like(self, entries: dict[str, Any]) -> Self:
        return type(self)(entries)


class Weights(Tree):
    """Weights of a model: parameters and buffers (running statistics).

    Sums and means include both, so that an average of models also averages BatchNorm's statistics. Norms, inner
    products and gradients include only the parameters.

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
        """Parameters, without buffers."""
        return Tree({n: t for n, t in self.items() if n not in self.buffers})

    @property
    def stats(self) -> Tree:
        """Buffers, such as running means and variances."""
        return Tree({n: t for n, t in self.items() if n in self.buffers})

    def replace(self, other: Mapping[str, Any] | None = None, /, **entries: Any) -> Self:
        """Return a copy with the given entries replaced or added; buffers of `other` stay buffers."""
        buffers = other.buffers if isinstance(other, Weights) else frozenset()
        return type(self)({**self, **(other or {}), **entries}, self.buffers | buffers)

    def vector(self) -> dict[str, Tensor]:
        """Return the named parameters, without buffers."""
        return {n: t for n, t in self.items() if n not in self.buffers}

    def _like(self, entries: dict[str, Any]) -> Self:
        return type(self)(entries, self.buffers)


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    """Return whether a dotted name equals or starts with one of the prefixes."""
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def stack(trees: list[Tree]) -> Tree:
    """Stack trees along a new leading axis, one row per tree."""
    return trees[0].map(lambda *ts: torch.stack(ts), *trees[1:])


def cat(trees: Sequence[Tree]) -> Tree:
    """Concatenate trees along the leading axis of their tensors.

    >>> cat([Tree(a=torch.tensor([1.0, 2.0])), Tree(a=torch.tensor([3.0]))])["a"]
    tensor([1., 2., 3.])
    """
    return trees[0].map(lambda *ts: torch.cat(ts), *trees[1:])


def unstack(tree: Tree, count: int) -> list[Tree]:
    """Split a stacked tree into its first `count` rows."""
    rows = tree.map(Tensor.unbind)  # each tensor becomes a tuple of rows: faster than indexing
    return [rows.map(itemgetter(i)) for i in range(count)]


def total(trees: list[Tree]) -> Tree:
    """Return the sum of trees, added in order.

    Args:
        trees: Trees with the same names, shapes and dtypes.

    Raises:
        KeyError: If the names differ.

    >>> total([Tree(a=torch.tensor([1.0, 2.0])), Tree(a=torch.tensor([3.0, 4.0]))])["a"]
    tensor([4., 6.])
    """
    out = trees[0].clone()
    sums = out.leaves()
    for tree in trees[1:]:
        terms = tree.leaves()
        if terms.keys() != sums.keys():
            odd = sorted(terms.keys() ^ sums.keys())
            raise KeyError(f"trees with different names: {', '.join(odd[:4])} are in only one of them")
        torch._foreach_add_(list(sums.values()), [terms[name] for name in sums])  # one kernel instead of many
    return out


# Register trees as containers of torch.func (vmap, grad).
pytree.register_pytree_node(
    Tree,
    lambda t: (list(t.values()), tuple(t.keys())),
    lambda values, names: Tree(zip(names, values, strict=True)),
    serialized_type_name="fedhead.Tree",
)
pytree.register_pytree_node(
    Weights,
    # a tuple, since the repr is part of the compiler's cache key and the order of a set is not deterministic
    lambda t: (list(t.values()), (tuple(t.keys()), tuple(n for n in t if n in t.buffers))),
    lambda values, context: Weights(zip(context[0], values, strict=True), context[1]),
    serialized_type_name="fedhead.Weights",
)
