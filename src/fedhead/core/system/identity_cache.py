"""What was made of the very same objects before is not made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class IdentityCache(Generic[T]):
    """Keeps the latest few results, and the objects that they were made of.

    Args:
        most: How many results to keep.
    """

    def __init__(self, most: int):
        self.most = most
        self._kept: tuple[tuple[tuple[object, ...], T], ...] = ()  # replaced as a whole: threads may ask at once

    def once(self, sources: Sequence[object], make: Callable[[], T]) -> T:
        """Return what was made of the very same objects in this order, or make it.

        Args:
            sources: The objects, told apart by identity; they are held, so that no other object can take the place of
                one. They must not change.
            make: Makes it.

        >>> latest, a = IdentityCache(most=1), [1, 2]
        >>> latest.once([a], lambda: sum(a)), latest.once([a], lambda: -1), latest.once([[1, 2]], lambda: -1)
        (3, 3, -1)
        """
        kept = self._kept
        known = next((one for one in kept if _same(one[0], sources)), None)
        if known is None:
            self._kept = kept[: self.most - 1]  # before another is made, for its memory
            known = (tuple(sources), make())
        self._kept = (known, *(one for one in self._kept if one is not known))[: self.most]
        return known[1]


def _same(mine: Sequence[object], others: Sequence[object]) -> bool:
    return len(mine) == len(others) and all(a is b for a, b in zip(mine, others, strict=True))
