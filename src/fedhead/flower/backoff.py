"""Polling intervals: short at first, then growing."""

from __future__ import annotations

import contextlib
import time

SHARE = 0.1  # interval as a share of the elapsed time
OBJECT_SECONDS = 0.1  # first interval for parts of a message


class Backoff:
    """Polling intervals that grow with the elapsed time: long waits need few polls and last at most a tenth longer.

    Args:
        shortest: Shortest interval in seconds.
    """

    def __init__(self, shortest: float) -> None:
        self.shortest = shortest
        self.restart()

    def restart(self) -> None:
        """Begin with short intervals again."""
        self._begin = time.monotonic()

    def sleep(self, longest: float) -> None:
        """Sleep for the next interval, at most `longest` seconds."""
        time.sleep(min(longest, max(self.shortest, SHARE * (time.monotonic() - self._begin))))


def shorten_object_waits() -> None:
    """Shorten Flower's wait for parts of a message that have not arrived at the SuperLink yet.

    Flower waits for a second. With frequent polls this would happen in most rounds. The setting is not public: a
    version of Flower without it keeps its own wait.
    """
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from flwr.supercore.inflatable.inflatable_utils import pull_objects

        pull_objects.__kwdefaults__["initial_backoff"] = OBJECT_SECONDS  # type: ignore[index]  # TypeError is expected
