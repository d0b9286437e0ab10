"""Trees: named tensors that add, subtract and scale, the only form in which anything is sent or kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Tree(dict[str, Any]):
    """A dictionary of tensors (or of further trees) with the arithmetic of a vector.

    >>> a = Tree(w=torch.tensor([1.0, 2.0]), b=torch.tensor(3.0))
    >>> (a + 2 * a).sq()
    tensor(126.)
    """

    # -- arithmetic -------------------------------------------------------------------------------
    def map(self, fn: Callable[..., Any], *others: Any) -> Self:
        """Apply `fn` to every tensor and to its namesakes in `others` (trees of the same names, or numbers)."""
        for other in others:
            if isinstance(other, Tree) and other.keys() != self.keys():
                odd = sorted(set(other) ^ set(self))
                raise KeyError(f"trees of different names: {', '.join(odd[:4])} stand on one side only")
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
        """A tree of the same names and shapes, all zero."""
        return self.map(torch.zeros_like)

    def detach(self) -> Self:
        """The same values, cut off from the gradient."""
        return self.map(torch.Tensor.detach)

    def clone(self) -> Self:
        """A copy that shares no memory."""
        return self.map(torch.clone)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """`Tensor.to` on every tensor."""
        return self.map(lambda t: t.to(*args, **kwargs))

    def dot(self, other: Tree) -> Tensor:
        """The inner product with a tree of the same names."""
        mine, theirs = self._vector(), other._vector()
        if mine.keys() != theirs.keys():
            raise KeyError(f"trees of different names: {', '.join(sorted(mine.keys() ^ theirs.keys())[:4])}")
        return cast(Tensor, sum((t * theirs[n]).sum() for n, t in mine.items()))

    def sq(self) -> Tensor:
        """The squared Euclidean norm."""
        return cast(Tensor, sum(t.square().sum() for t in self._vector().values()))

    def _vector(self) -> dict[str, Tensor]:
        return self.leaves()

    # -- names ------------------------------------------------------------------------------------
    def part(self, *prefixes: str) -> Self:
        """The entries whose names lie under one of the dotted prefixes."""
        return self._like({n: t for n, t in self.items() if _under(n, prefixes)})

    def without(self, *prefixes: str) -> Self:
        """The entries whose names lie under none of the dotted prefixes."""
        return self._like({n: t for n, t in self.items() if not _under(n, prefixes)})

    def replace(self, other: Mapping[str, Any] | None = None, /, **entries: Any) -> Self:
        """A copy in which the given entries are put in place of, or beside, those that are there."""
        return self._like({**self, **(other or {}), **entries})

    def leaves(self) -> dict[str, Tensor]:
        """Every tensor under its full name, the levels joined by '/'.

        >>> list(Tree(model=Tree(w=torch.zeros(1))).leaves())
        ['model/w']
        """
        return dict(self._walk(""))

    def _walk(self, before: str) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.items():
            if isinstance(value, Tree):
                yield from value._walk(f"{before}{name}/")
            else:
                yield before + name, value

    @property
    def nbytes(self) -> int:
        """The bytes that the tensors hold."""
        return sum(t.nbytes for t in self.leaves().values())

    @property
    def numel(self) -> int:
        """How many numbers the tensors hold."""
        return sum(t.numel() for t in self.leaves().values())

    def finite(self) -> bool:
        """Whether every number is finite."""
        return all(bool(torch.isfinite(t).all()) for t in self.leaves().values() if t.is_floating_point())

    def _like(self, entries: dict[str, Any]) -> Self:
        return type(self)(entries)


class Weights(Tree):
    """The weights of a model: its parameters, with their running statistics in tow.

    Sums and means run over both, so that an average of models averages BatchNorm's statistics too;
    norms, inner products and gradients see the parameters alone.
    """

    buffers: frozenset[str]

    def __init__(self, entries: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), buffers: Iterable[str] = ()):
        super().__init__(entries)
        self.buffers = frozenset(buffers) & self.keys()

    @property
    def params(self) -> Tree:
        """What is trained."""
        return Tree({n: t for n, t in self.items() if n not in self.buffers})

    @property
    def stats(self) -> Tree:
        """What is only measured: running means and variances."""
        return Tree({n: t for n, t in self.items() if n in self.buffers})

    def replace(self, other: Mapping[str, Any] | None = None, /, **entries: Any) -> Self:
        """A copy with the given entries; what is a running statistic there is one here."""
        more = other.buffers if isinstance(other, Weights) else frozenset()
        return type(self)({**self, **(other or {}), **entries}, self.buffers | more)

    def _vector(self) -> dict[str, Tensor]:
        return {n: t for n, t in self.items() if n not in self.buffers}

    def _like(self, entries: dict[str, Any]) -> Self:
        return type(self)(entries, self.buffers)


def _under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def stack(trees: list[Tree]) -> Tree:
    """One tree whose tensors have a leading axis, one row a tree."""
    return trees[0].map(lambda *ts: torch.stack(ts), *trees[1:])


def unstack(tree: Tree, count: int) -> list[Tree]:
    """The rows of a stacked tree."""
    return [tree.map(lambda t, i=i: t[i]) for i in range(count)]


def mean(trees: list[Tree], weights: list[float]) -> Tree:
    """The weighted mean; the weights need not add up to 1."""
    total = math.fsum(weights)
    if not total > 0:
        raise ValueError(f"a weighted mean needs weights of a positive sum, not {total}")

    def average(*rows: Tensor) -> Tensor:
        share = torch.tensor([w / total for w in weights], dtype=rows[0].dtype, device=rows[0].device)
        mixed: Tensor = torch.tensordot(share, torch.stack(rows), dims=1)
        return mixed

    return trees[0].map(average, *trees[1:])


# Trees are containers to torch.func (vmap, grad): this is the only place that touches pytree's internals.
pytree.register_pytree_node(
    Tree,
    lambda t: (list(t.values()), tuple(t.keys())),
    lambda values, names: Tree(zip(names, values, strict=True)),
    serialized_type_name="fedhead.Tree",
)
pytree.register_pytree_node(
    Weights,
    lambda t: (list(t.values()), (tuple(t.keys()), t.buffers)),
    lambda values, context: Weights(zip(context[0], values, strict=True), context[1]),
    serialized_type_name="fedhead.Weights",
)
