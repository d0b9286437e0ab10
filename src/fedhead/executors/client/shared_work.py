"""What runs that train together need alike, computed by one of them for all."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class SharedWork:
    """What one run has made and others that train together with it need as well; only one of them proceeds at a time.

    Attributes:
        checked_losses: The losses that one of the runs has checked.
    """

    def __init__(self) -> None:
        self.checked_losses: set[Any] = set()
        self._made: dict[Hashable, tuple[tuple[object, ...], Any]] = {}

    def once(self, what: Hashable, sources: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return what was made of the very same objects before, or make it.

        Args:
            what: What is made, with the settings that decide it.
            sources: The objects that it is made of, told apart by identity; they are held, so that no other object can
                take the place of one.
            make: Makes it.
        """
        key = (what, *(id(source) for source in sources))
        if key not in self._made:
            self._made[key] = (sources, make())
        found: T = self._made[key][1]
        return found
