"""The time that a command may take."""

from __future__ import annotations

import math
import time
from typing import Annotated

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import AtLeast, AtMost

MOST_MINUTES = 10_000_000  # 19 years; seconds beyond the largest float would count as no time at all


class TimeBudget:
    """The time after which no run is begun any more; one that was begun comes to its end.

    Args:
        minutes: How long runs are begun; None: without end.

    Raises:
        BadInput: If the time is negative, too long or no number.
    """

    def __init__(self, minutes: float | None = None):
        check("minutes", minutes, Annotated[float, AtLeast(0), AtMost(MOST_MINUTES)] | None)
        self._end = math.inf if minutes is None else time.monotonic() + 60 * minutes

    @property
    def exhausted(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._end
