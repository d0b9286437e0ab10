"""Waits between two polls: short at first, then growing."""

from __future__ import annotations

import contextlib
import time

SHARE = 0.1  # of the time that has passed
OBJECT_SECONDS = 0.1


class Waits:
    """Waits that are a share of the time since they began, so that polling adds a tenth at most and polls rarely.

    Args:
        shortest: Shortest wait in seconds.
    """

    def __init__(self, shortest: float) -> None:
        self.shortest = shortest
        self.restart()

    def restart(self) -> None:
        """Begin with short waits again."""
        self._begin = time.monotonic()

    def sleep(self, longest: float) -> None:
        """Wait, for at most that many seconds."""
        time.sleep(min(longest, max(self.shortest, SHARE * (time.monotonic() - self._begin))))


def shorten_object_waits() -> None:
    """Let Flower ask again soon for parts of a message that are still on their way to the SuperLink.

    By default it waits for a second, which frequent polls would meet in most rounds. The setting is not public: a
    version of Flower without it keeps its own wait.
    """
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from flwr.supercore.inflatable.inflatable_utils import pull_objects

        pull_objects.__kwdefaults__["initial_backoff"] = OBJECT_SECONDS  # type: ignore[index]  # TypeError is expected
