"""Slots: a fixed number of positions in a stack, which the clients of a round occupy one after another.

Clients differ in their number of steps. A stack with one slot per client would mostly wait for the longest of them.
With fewer slots, the next client takes the slot of one that has finished. A client may be paused to balance the slots:
it trains in one slot at the beginning of the round and in another at its end. The number of slots never changes, so one
compiled step serves the whole run.
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

# Fixed cost of a step, in clients: a step of W clients takes time proportional to OVERHEAD + W.
# Measured on an H200 in bf16: 4 for ResNet-20, 9 for SimpleCNN.
OVERHEAD = 6
ALL_WIDTHS = 64  # up to this number of clients, every number of slots is tried


class Turn(NamedTuple):
    """Interval [begin, end) of the round's steps in which a client occupies a slot."""

    client: int
    slot: int
    begin: int
    end: int
    done: int = 0  # steps completed before a pause


@dataclass(frozen=True)
class Segment:
    """Consecutive steps during which no slot changes its client.

    Args:
        enter: Turns that begin with the first step.
        steps: Number of steps.
        leave: Turns that end with the last step.
    """

    enter: list[Turn]
    steps: int
    leave: list[Turn]


@dataclass(frozen=True)
class Plan:
    """Assignment of clients to slots, step by step.

    Args:
        turns: One per client with steps; two if the client is paused.
        slots: Number of slots.
    """

    turns: list[Turn]
    slots: int

    @cached_property
    def steps(self) -> int:
        """Number of steps until the last client has finished."""
        return max((turn.end for turn in self.turns), default=0)

    @cached_property
    def cost(self) -> int:
        """Estimated duration of the round in steps; moving clients takes at most one step each time."""
        return self.steps + len({turn.end for turn in self.turns})

    @cached_property
    def segments(self) -> list[Segment]:
        """Steps split wherever a client enters or leaves."""
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
        """Return two tables, [steps, slots]: the client in each slot at each step, and its number of completed steps.

        An empty slot repeats its last batch; the result is discarded.
        """
        client = np.zeros((self.steps, self.slots), np.int64)
        done = np.zeros((self.steps, self.slots), np.int64)
        for turn in sorted(self.turns, key=lambda turn: turn.begin):
            client[turn.begin :, turn.slot] = turn.client
            total = turn.done + turn.end - turn.begin
            done[turn.begin : turn.end, turn.slot] = np.arange(turn.done, total)
            done[turn.end :, turn.slot] = total - 1
        return client, done


def plan(lengths: Sequence[int], slots: int) -> Plan:
    """Assign clients to slots; some are paused if that is faster.

    Args:
        lengths: Number of steps of each client.
        slots: Number of slots.

    Returns:
        Plan of all clients with steps.

    >>> [(turn.client, turn.slot, turn.begin, turn.end) for turn in plan([2, 5, 3], slots=2).turns]
    [(1, 0, 0, 5), (2, 1, 0, 3), (0, 1, 3, 5)]
    """
    ordered = [k for k in sorted(range(len(lengths)), key=lambda k: (-lengths[k], k)) if lengths[k]]
    plans = (assign(ordered, lengths, slots) for assign in (_whole, _paused))
    return min(plans, key=lambda plan: plan.cost)


def _whole(ordered: Sequence[int], lengths: Sequence[int], slots: int) -> Plan:
    """Assign clients by decreasing length, each to the slot that is free first (Graham, 1969)."""
    free = [(0, slot) for slot in range(slots)]
    turns = []
    for client in ordered:
        begin, slot = heapq.heappop(free)
        turns.append(Turn(client, slot, begin, begin + lengths[client]))
        heapq.heappush(free, (begin + lengths[client], slot))
    return Plan(turns, slots)


def _paused(ordered: Sequence[int], lengths: Sequence[int], slots: int) -> Plan:
    """Fill slot after slot up to the minimum number of steps, and split the last client (McNaughton, 1959).

    Its first part trains at the beginning of the next slot. A client is not split while idle steps are left.
    """
    steps = fewest_steps(lengths, slots)
    room = slots * steps - sum(lengths)  # idle steps that are left
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
    """Return the minimum number of steps of a round, with optimally filled slots.

    >>> fewest_steps([2, 5, 3], 2), fewest_steps([2, 5, 3], 3)
    (5, 5)
    """
    return max(-(-sum(lengths) // slots), *lengths, 0)


def choose_slots(lengths: Sequence[int]) -> int:
    """Return the number of slots that minimizes the time of a round.

    Args:
        lengths: Number of steps of each client.

    >>> choose_slots([10] * 20), choose_slots([100, 20, 20, 20, 20, 20])
    (20, 2)
    """
    count = sum(length > 0 for length in lengths)
    # With n > ALL_WIDTHS clients try only n/1, n/2, n/3 … slots, rounded up: about 2 sqrt(n) different numbers.
    every = range(1, len(lengths) + 1)
    widths = every if len(lengths) <= ALL_WIDTHS else {-(-len(lengths) // per_slot) for per_slot in every}

    def lower_bound(slots: int) -> int:
        return (fewest_steps(lengths, slots) + -(-count // slots)) * (OVERHEAD + slots)

    best, least = 1, float("inf")
    for bound, slots in sorted((lower_bound(slots), slots) for slots in widths):
        if bound >= least:
            break
        cost = plan(lengths, slots).cost * (OVERHEAD + slots)
        best, least = (slots, cost) if cost < least else (best, least)
    return best
