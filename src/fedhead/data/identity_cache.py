"""Cache keyed by object identity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class IdentityCache(Generic[T]):
    """Cache of the latest results, keyed by the identity of their source objects.

    Args:
        most: Maximum number of cached results.
    """

    def __init__(self, most: int):
        self.most = most
        self._kept: tuple[tuple[tuple[object, ...], T], ...] = ()  # replaced as a whole, for thread safety

    def get_or_make(self, sources: Sequence[object], make: Callable[[], T]) -> T:
        """Return the cached result for these objects, in this order, or compute it.

        Args:
            sources: Objects, compared by identity. The cache keeps references to them, so that no identity is reused.
                They must not change.
            make: Function that computes the result.

        >>> cache, a = IdentityCache(most=1), [1, 2]
        >>> cache.get_or_make([a], lambda: sum(a)), cache.get_or_make([a], lambda: -1)
        (3, 3)
        """
        kept = self._kept
        known = next((entry for entry in kept if _same(entry[0], sources)), None)
        if known is None:
            self._kept = kept[: self.most - 1]  # free memory before the next result is computed
            known = (tuple(sources), make())
        self._kept = (known, *(entry for entry in self._kept if entry is not known))[: self.most]
        return known[1]


def _same(mine: Sequence[object], others: Sequence[object]) -> bool:
    return len(mine) == len(others) and all(a is b for a, b in zip(mine, others, strict=True))
