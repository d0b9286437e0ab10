"""Groups of lanes: clients that train at the same time, and the CUDA graphs that fork into their streams and join."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from fedhead.executors.client.client_round import Carry, PhaseRun
from fedhead.executors.lanes.lane_batches import LaneBatches
from fedhead.executors.lanes.lane_steps import CompiledSteps, Lane
from fedhead.executors.stack.step_graphs import StepGraphs, copy_into, preparing

STEPS_PER_GRAPH = 4  # each step takes time to capture, for every lane


class LaneGroup:
    """Lanes that run concurrently, most steps first, and the graphs for the first few of them."""

    def __init__(self, work: list[PhaseRun], compiled: CompiledSteps):
        self.lanes = [Lane(phase_run, in_place=not compiled.wanted) for phase_run in work]
        self.compiled = compiled
        self.sizes = buckets(len(work))
        self.graphs: dict[tuple[int, bool], StepGraphs] = {}  # by bucket, and whether batches may have padding
        self.preparing = 0.0

    def train(self, work: list[PhaseRun]) -> list[Carry]:
        """Run all steps of all lanes."""
        for lane, phase_run in zip(self.lanes, work, strict=True):
            lane.load(phase_run)
        done: dict[int, Carry] = {}
        for active, padded, steps in active_lanes([_padded(phase_run) for phase_run in work]):
            done |= {k: _copy(self.lanes[k].carry) for k in range(active, len(work)) if k not in done}
            key = bucket(active, self.sizes), padded
            if key not in self.graphs:
                self.graphs[key] = self._prepare(*key)
            self.graphs[key].replay(steps)
        return [done.get(k) or _copy(lane.carry) for k, lane in enumerate(self.lanes)]

    def _prepare(self, size: int, padded: bool) -> StepGraphs:
        lanes = self.lanes[:size]
        with preparing(self):
            before = [(lane.carry, _copy(lane.carry), lane.counter.clone()) for lane in lanes]
            take = self._steps(lanes, padded)
            for _ in range(2):  # libraries select kernels and allocate workspace in the first calls
                take(1)
            for lane, (carry, values, counter) in zip(lanes, before, strict=True):
                copy_into(carry, values)
                lane.counter.copy_(counter)
        return StepGraphs(self, take, steps_per_graph=STEPS_PER_GRAPH)

    def _steps(self, lanes: list[Lane], padded: bool) -> Callable[[int], None]:
        """Return the function that takes so many steps in each lane."""
        batches = LaneBatches(lanes)
        if self.compiled.wanted or not batches.are_small(STEPS_PER_GRAPH):  # a compiler fuses the drawing of each lane
            own = [partial(lane.take, *self.compiled(lane, padded)) for lane in lanes]
            return lambda steps: _fork(lanes, [[take] * steps for take in own])

        def take(steps: int) -> None:
            drawn = batches.draw(steps)  # held until the lanes have joined
            _fork(
                lanes,
                [[partial(k.take_drawn, *one, padded) for one in own] for k, own in zip(lanes, drawn, strict=True)],
            )

        return take


def _fork(lanes: Sequence[Lane], steps: Sequence[Sequence[Callable[[], None]]]) -> None:
    """Take the steps of each lane in its own stream, and wait for all of them."""
    main = torch.cuda.current_stream()
    for lane, own in zip(lanes, steps, strict=True):
        lane.stream.wait_stream(main)
        with torch.cuda.stream(lane.stream):
            for take in own:
                take()
    for lane in lanes:
        main.wait_stream(lane.stream)


def buckets(width: int) -> list[int]:
    """Return the numbers of lanes for which graphs are captured: all of them, half and a quarter.

    >>> buckets(40), buckets(5), buckets(1)
    ([40, 20, 10], [5, 3, 2], [1])
    """
    return list(dict.fromkeys([width, math.ceil(width / 2), math.ceil(width / 4)]))


def bucket(width: int, sizes: list[int]) -> int:
    """Return the smallest bucket that holds a width."""
    return min(size for size in sizes if size >= width)


def active_lanes(padded: list[list[bool]]) -> list[tuple[int, bool, int]]:
    """Return how many lanes are active, whether one of them has padding, and for how many steps.

    Args:
        padded: Whether each step of each lane has padding, the lane with most steps first.

    >>> active_lanes([[False] * 4, [False, True], [True]])
    [(3, True, 1), (2, True, 1), (1, False, 2)]
    """
    kinds = []
    for step in range(len(padded[0])):
        now = [lane[step] for lane in padded if len(lane) > step]
        kinds.append((len(now), any(now)))
    return [(*kind, len(list(steps))) for kind, steps in itertools.groupby(kinds)]


def _padded(phase_run: PhaseRun) -> list[bool]:
    """Return whether each step has padding that its model has to leave out."""
    leaves_out = phase_run.step.program.task.model.may_normalize_batches
    return [leaves_out and padded for padded in phase_run.batches.padded]


def _copy(carry: Carry) -> Carry:
    return Carry(*(tree.clone() for tree in carry))
