"""Slots: a fixed number of places in a stack, through which the clients of a round pass one after another.

Clients differ in their number of steps. A stack with one place per client would be mostly idle behind the longest of
them; with fewer places, a client that is done makes room for the next one. Where whole clients fill the places badly,
some are paused: they train in one place at the beginning of the round, and in another at its end. The width never
changes, so one compiled step serves the whole run.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# What a step costs besides its clients, in clients: a step of W clients takes a time proportional to OVERHEAD + W.
# Measured on an H200 in bf16: 4 for ResNet-20, 9 for SimpleCNN.
OVERHEAD = 6
ALL_WIDTHS = 64  # clients up to which every number of slots is considered


class Turn(NamedTuple):
    """The time of one client in a slot: its steps take place in [begin, end) of the round's steps."""

    client: int
    slot: int
    begin: int
    end: int
    done: int = 0  # steps that it has made before: more than 0 where it was paused


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
    """Assignment of clients to slots, step by step.

    Args:
        turns: One per client that has steps, two where a client is paused.
        slots: Number of slots.
    """

    turns: list[Turn]
    slots: int

    @cached_property
    def steps(self) -> int:
        """Steps until the last client is done."""
        return max((turn.end for turn in self.turns), default=0)

    @cached_property
    def cost(self) -> int:
        """About how long the round takes, in steps of one width: to move clients takes as long as a step or less."""
        return self.steps + len({turn.end for turn in self.turns})

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
            made = turn.done + turn.end - turn.begin
            done[turn.begin : turn.end, turn.slot] = np.arange(turn.done, made)
            done[turn.end :, turn.slot] = made - 1
        return client, done


def plan(lengths: Sequence[int], slots: int) -> Plan:
    """Assign clients to slots; some are paused if that takes less time.

    Args:
        lengths: Each client's number of steps.
        slots: Number of slots.

    Returns:
        The plan, without the clients that have no steps.

    >>> [(turn.client, turn.slot, turn.begin, turn.end) for turn in plan([2, 5, 3], slots=2).turns]
    [(1, 0, 0, 5), (2, 1, 0, 3), (0, 1, 3, 5)]
    """
    ordered = [k for k in sorted(range(len(lengths)), key=lambda k: (-lengths[k], k)) if lengths[k]]
    made = (assign(ordered, lengths, slots) for assign in (_whole, _paused))
    return min(made, key=lambda plan: plan.cost)


def _whole(ordered: Sequence[int], lengths: Sequence[int], slots: int) -> Plan:
    """Assign the longest client first, each to the slot that is free first (Graham, 1969)."""
    free = [(0, slot) for slot in range(slots)]
    turns = []
    for client in ordered:
        begin, slot = heapq.heappop(free)
        turns.append(Turn(client, slot, begin, begin + lengths[client]))
        heapq.heappush(free, (begin + lengths[client], slot))
    return Plan(turns, slots)


def _paused(ordered: Sequence[int], lengths: Sequence[int], slots: int) -> Plan:
    """Fill one slot after another up to the fewest steps possible, its last client in part (McNaughton, 1959).

    The other part of such a client comes first, at the beginning of the next slot. Slots end early as long as there is
    room for all clients.
    """
    steps = fewest_steps(lengths, slots)
    room = slots * steps - sum(lengths)  # that may be left free
    turns, slot, begin = list[Turn](), 0, 0
    for client in ordered:
        free, length = steps - begin, lengths[client]
        if length > free and free <= room:
            room, slot, begin, free = room - free, slot + 1, 0, steps
        if length <= free:
            turns.append(Turn(client, slot, begin, begin + length))
            begin += length
        else:
            first = length - free
            turns += [Turn(client, slot + 1, 0, first), Turn(client, slot, begin, steps, done=first)]
            slot, begin = slot + 1, first
    return Plan(turns, slots)


def fewest_steps(lengths: Sequence[int], slots: int) -> int:
    """Return the steps of a round whose slots are filled as well as possible.

    >>> fewest_steps([2, 5, 3], 2), fewest_steps([2, 5, 3], 3)
    (5, 5)
    """
    return max(-(-sum(lengths) // slots), *lengths, 0)


def choose_slots(lengths: Sequence[int]) -> int:
    """Return the number of slots with which a round takes the least time.

    Args:
        lengths: Each client's number of steps.

    >>> choose_slots([10] * 20), choose_slots([100, 20, 20, 20, 20, 20])
    (20, 2)
    """
    count = sum(length > 0 for length in lengths)
    # with many clients only the smallest width for each number of clients per slot, about 2 sqrt(n) widths
    every = range(1, len(lengths) + 1)
    widths = every if len(lengths) <= ALL_WIDTHS else {-(-len(lengths) // each) for each in every}

    def lower_bound(slots: int) -> int:
        return (fewest_steps(lengths, slots) + -(-count // slots)) * (OVERHEAD + slots)

    best, least = 1, float("inf")
    for bound, slots in sorted((lower_bound(slots), slots) for slots in widths):
        if bound >= least:
            break
        cost = plan(lengths, slots).cost * (OVERHEAD + slots)
        best, least = (slots, cost) if cost < least else (best, least)
    return best
