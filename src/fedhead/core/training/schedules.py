"""Learning rate schedules over the rounds, as factors of the optimizer's rate.

They equal those of `torch.optim.lr_scheduler` with rounds instead of epochs, as the tests verify.
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
    """Constant learning rate; base class of the other schedules."""

    needs_rounds = False  # whether the factor depends on the number of rounds

    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of the learning rate.

        Args:
            round: Round number, counted from 0.
            rounds: Number of rounds.
        """
        return 1.0


@dataclass(frozen=True)
class Cosine(LRSchedule):
    """Cosine decay from 1 to `end`, as `CosineAnnealingLR` with `T_max` the number of rounds."""

    end: Annotated[float, AtLeast(0), AtMost(1)] = 0.0
    needs_rounds = True

    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of the learning rate."""
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * round / rounds)) / 2


@dataclass(frozen=True)
class Step(LRSchedule):
    """Multiplication by `gamma` every `size` rounds, as `StepLR`."""

    size: Annotated[int, AtLeast(1)]
    gamma: Annotated[float, Above(0), AtMost(1)] = 0.1

    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of the learning rate."""
        return float(self.gamma ** (round // self.size))


SCHEDULES: Mapping[str, type[LRSchedule]] = MappingProxyType({"constant": LRSchedule, "cosine": Cosine, "step": Step})


def make_schedule(text: str | None) -> LRSchedule:
    """Parse a schedule.

    Args:
        text: `constant` (or None), `cosine`, `cosine(0.01)` (final factor 0.01) or `step(30, 0.1)`.

    Returns:
        Learning rate schedule.

    Raises:
        BadInput: If the schedule is unknown or its arguments are invalid.

    >>> make_schedule("step(30)")
    Step(size=30, gamma=0.1)
    """
    call = read_call(text or "constant", "lr_schedule")
    require_known("lr_schedule", call.name, SCHEDULES)
    kind = SCHEDULES[call.name]
    return kind(**call.arguments("lr_schedule", parameters(kind), required(kind)))


def learning_rate_factor(schedule: LRSchedule, warmup: int, round: int, rounds: int) -> float:
    """Return the factor of a round: linear warm-up for `warmup` rounds, then the schedule.

    The same as PyTorch's `SequentialLR` of `LinearLR(start_factor=1 / (warmup + 1), total_iters=warmup)` and the
    schedule. Stages use the factor of the last round: that of the round after it would be 0 with `cosine`.

    Args:
        schedule: Schedule after the warm-up.
        warmup: Number of warm-up rounds.
        round: Round number, counted from 0.
        rounds: Number of rounds.

    >>> [round(learning_rate_factor(LRSchedule(), 3, r, 10), 2) for r in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    if not rounds:
        return 1.0
    round = min(round, rounds - 1)
    if round < warmup:
        return (round + 1) / (warmup + 1)
    return schedule.factor(round - warmup, max(rounds - warmup, 1))
