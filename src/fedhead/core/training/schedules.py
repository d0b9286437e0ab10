"""Schedules of the learning rate over the rounds, as factors of the optimizer's own rate.

They are those of `torch.optim.lr_scheduler`, with a round in place of an epoch, which the tests verify.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from fedhead.core.components.component_syntax import read_call
from fedhead.core.components.parameters import Checked, parameters, required
from fedhead.core.components.ranges import Above, AtLeast, AtMost
from fedhead.core.system.errors import require_known


@dataclass(frozen=True)
class LRSchedule(Checked):
    """A constant learning rate; the base of the others."""

    needs_rounds = False  # whether the factor depends on how many rounds there are

    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of the learning rate.

        Args:
            round: Number of the round, from 0.
            rounds: How many rounds there are.
        """
        return 1.0


@dataclass(frozen=True)
class Cosine(LRSchedule):
    """Half a cosine from 1 down to `end`, as `CosineAnnealingLR` with `T_max` the number of rounds."""

    end: Annotated[float, AtLeast(0), AtMost(1)] = 0.0
    needs_rounds = True

    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of the learning rate."""
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * round / rounds)) / 2


@dataclass(frozen=True)
class Step(LRSchedule):
    """Multiplied by `gamma` every `size` rounds, as `StepLR`."""

    size: Annotated[int, AtLeast(1)]
    gamma: Annotated[float, Above(0), AtMost(1)] = 0.1

    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of the learning rate."""
        return float(self.gamma ** (round // self.size))


SCHEDULES: Mapping[str, type[LRSchedule]] = MappingProxyType({"constant": LRSchedule, "cosine": Cosine, "step": Step})


def make_schedule(text: str | None) -> LRSchedule:
    """Make a schedule of a text.

    Args:
        text: `constant` (as None), `cosine`, `cosine(0.01)` (which ends at a hundredth) or `step(30, 0.1)`.

    Returns:
        The schedule.

    Raises:
        BadInput: There is no such schedule, or its arguments don't fit.

    >>> make_schedule("step(30)")
    Step(size=30, gamma=0.1)
    """
    call = read_call(text or "constant", "lr_schedule")
    require_known("lr_schedule", call.name, SCHEDULES)
    kind = SCHEDULES[call.name]
    return kind(**call.arguments("lr_schedule", parameters(kind), required(kind)))


def learning_rate_factor(schedule: LRSchedule, warmup: int, round: int, rounds: int) -> float:
    """Return the factor of a round: rising evenly for `warmup` rounds, then as the schedule for those that are left.

    As `SequentialLR` of `LinearLR(start_factor=1 / (warmup + 1), total_iters=warmup)` and the schedule. Stages, which
    come after the rounds, train at the full rate.

    Args:
        schedule: The schedule after the warm-up.
        warmup: Rounds of the warm-up.
        round: Number of the round, from 0.
        rounds: How many rounds there are.

    >>> [round(learning_rate_factor(LRSchedule(), 3, r, 10), 2) for r in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    if round >= rounds:
        return 1.0
    if round < warmup:
        return (round + 1) / (warmup + 1)
    return schedule.factor(round - warmup, max(rounds - warmup, 1))
