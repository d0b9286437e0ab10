"""Time budget of a command."""

from __future__ import annotations

import math
import time
from typing import Annotated

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import AtLeast, AtMost

MOST_MINUTES = 10_000_000  # 19 years; larger values could overflow


class TimeBudget:
    """Time budget after which no run is started; running ones are finished.

    Args:
        minutes: Budget in minutes; None: unlimited.

    Raises:
        BadInput: If the budget is negative, too long or not a number.
    """

    def __init__(self, minutes: float | None = None):
        check("minutes", minutes, Annotated[float, AtLeast(0), AtMost(MOST_MINUTES)] | None)
        self._end = math.inf if minutes is None else time.monotonic() + 60 * minutes

    @property
    def exhausted(self) -> bool:
        """True when the budget is used up."""
        return time.monotonic() >= self._end
