"""Slots: a fixed number of places in a stack, through which the clients of a round pass one after another.

Clients differ in their number of steps. A stack with one place per client would be mostly idle behind the longest of
them; with fewer places, a client that is done makes room for the next one, and only the end of a round is narrow. The
width never changes, so one compiled step serves the whole run.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

# What a step costs besides its clients, in clients: a step of W clients takes a time proportional to OVERHEAD + W.
# Measured on an H200 in bf16: 4 for ResNet-20, 9 for SimpleCNN.
OVERHEAD = 6


@dataclass(frozen=True)
class Turn:
    """The time of one client in a slot: its steps take place in [begin, end) of the round's steps."""

    client: int
    slot: int
    begin: int
    end: int


@dataclass(frozen=True)
class Segment:
    """Steps during which no slot changes its client.

    Args:
        enter: The turns that begin with the first step.
        steps: The number of steps.
        leave: The turns that end with the last step.
    """

    enter: list[Turn]
    steps: int
    leave: list[Turn]


@dataclass(frozen=True)
class Plan:
    """Which client trains in which slot at which step.

    Args:
        turns: One per client that has steps.
        slots: Number of slots.
    """

    turns: list[Turn]
    slots: int

    @cached_property
    def steps(self) -> int:
        """Steps until the last client is done."""
        return max((turn.end for turn in self.turns), default=0)

    @cached_property
    def segments(self) -> list[Segment]:
        """The steps, cut wherever a client enters or leaves."""
        times = sorted({0, *(turn.begin for turn in self.turns), *(turn.end for turn in self.turns)})
        return [
            Segment(
                [turn for turn in self.turns if turn.begin == begin],
                end - begin,
                [turn for turn in self.turns if turn.end == end],
            )
            for begin, end in itertools.pairwise(times)
        ]

    def table(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each slot's client, and how many steps it has made, at each step, both [steps, slots].

        A slot without a client repeats the last batch that it had, and what it computes is discarded.
        """
        client = np.zeros((self.steps, self.slots), np.int64)
        done = np.zeros((self.steps, self.slots), np.int64)
        for turn in sorted(self.turns, key=lambda turn: turn.begin):
            client[turn.begin :, turn.slot] = turn.client
            done[turn.begin : turn.end, turn.slot] = np.arange(turn.end - turn.begin)
            done[turn.end :, turn.slot] = turn.end - turn.begin - 1
        return client, done


def plan(lengths: Sequence[int], slots: int) -> Plan:
    """Assign clients to slots, the longest first, each to the slot that is free first (Graham, 1969).

    Args:
        lengths: Each client's number of steps.
        slots: Number of slots.

    Returns:
        The plan, without the clients that have no steps.

    >>> [(turn.client, turn.slot, turn.begin, turn.end) for turn in plan([2, 5, 3], slots=2).turns]
    [(1, 0, 0, 5), (2, 1, 0, 3), (0, 1, 3, 5)]
    """
    free = [(0, slot) for slot in range(slots)]
    turns = []
    for client in sorted(range(len(lengths)), key=lambda k: (-lengths[k], k)):
        if lengths[client]:
            begin, slot = heapq.heappop(free)
            turns.append(Turn(client, slot, begin, begin + lengths[client]))
            heapq.heappush(free, (begin + lengths[client], slot))
    return Plan(turns, slots)


def choose_slots(lengths: Sequence[int]) -> int:
    """Return the number of slots with which a round takes the least time.

    Args:
        lengths: Each client's number of steps.

    >>> choose_slots([10] * 20), choose_slots([100, 20, 20, 20, 20, 20])
    (20, 2)
    """
    ordered = sorted(lengths, reverse=True)
    total, longest = sum(ordered), max(ordered, default=0)
    best, least = 1, float("inf")
    for slots in range(1, len(ordered) + 1):
        at_least = max(-(-total // slots), longest)  # steps, however well the clients fit
        if at_least * (OVERHEAD + slots) < least:
            cost = _steps(ordered, slots) * (OVERHEAD + slots)
            best, least = (slots, cost) if cost < least else (best, least)
    return best


def _steps(ordered: Sequence[int], slots: int) -> int:
    """Return the steps of a plan for clients in order, the longest first."""
    free = [0] * slots
    for length in ordered:
        heapq.heapreplace(free, free[0] + length)
    return max(free)
