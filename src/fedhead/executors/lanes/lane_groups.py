"""Groups of lanes: clients that train concurrently, and the CUDA graphs that fork into their streams and join."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from fedhead.executors.client.client_round import Carry, PhaseRun
from fedhead.executors.lanes.lane_batches import LaneBatches
from fedhead.executors.lanes.lane_steps import CompiledSteps, Lane
from fedhead.executors.stack.step_graphs import StepGraphs, compiling, copy_into

STEPS_PER_GRAPH = 4  # small, since capture time grows with steps and lanes


class LaneGroup:
    """Lanes that run concurrently, most steps first, and graphs for prefixes of them."""

    def __init__(self, work: list[PhaseRun], compiled: CompiledSteps):
        self.lanes = [Lane(phase_run, in_place=not compiled.wanted) for phase_run in work]
        self.compiled = compiled
        self.sizes = buckets(len(work))
        self.graphs: dict[tuple[int, bool], StepGraphs] = {}  # keyed by bucket, and whether batches may be padded
        self.compile_seconds = 0.0

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
        with compiling(self):
            before = [(lane.carry, _copy(lane.carry), lane.counter.clone()) for lane in lanes]
            take = self._steps(lanes, padded)
            for _ in range(2):  # libraries select kernels and allocate workspace in the first calls
                take(1)
            for lane, (carry, values, counter) in zip(lanes, before, strict=True):
                copy_into(carry, values)
                lane.counter.copy_(counter)
        return StepGraphs(self, take, steps_per_graph=STEPS_PER_GRAPH)

    def _steps(self, lanes: list[Lane], padded: bool) -> Callable[[int], None]:
        """Return a function of the number of steps that runs them in each lane."""
        batches = LaneBatches(lanes)
        if self.compiled.wanted or not batches.are_small(STEPS_PER_GRAPH):  # the compiler fuses each lane's drawing
            takes = [partial(lane.take, *self.compiled(lane, padded)) for lane in lanes]
            return lambda steps: _fork(lanes, [[take] * steps for take in takes])

        def take(steps: int) -> None:
            drawn = batches.draw(steps)  # kept alive until the lanes have joined
            work = [
                [partial(k.take_drawn, *item, padded) for item in each] for k, each in zip(lanes, drawn, strict=True)
            ]
            _fork(lanes, work)

        return take


def _fork(lanes: Sequence[Lane], steps: Sequence[Sequence[Callable[[], None]]]) -> None:
    """Run the steps of each lane in its own stream, and wait for all streams."""
    main = torch.cuda.current_stream()
    for lane, calls in zip(lanes, steps, strict=True):
        lane.stream.wait_stream(main)
        with torch.cuda.stream(lane.stream):
            for take in calls:
                take()
    for lane in lanes:
        main.wait_stream(lane.stream)


def buckets(width: int) -> list[int]:
    """Return the bucket sizes for which graphs are captured: all lanes, a half and a quarter.

    >>> buckets(40), buckets(5), buckets(1)
    ([40, 20, 10], [5, 3, 2], [1])
    """
    return list(dict.fromkeys([width, math.ceil(width / 2), math.ceil(width / 4)]))


def bucket(width: int, sizes: list[int]) -> int:
    """Return the smallest bucket of at least `width` lanes."""
    return min(size for size in sizes if size >= width)


def active_lanes(padded: list[list[bool]]) -> list[tuple[int, bool, int]]:
    """Return runs of equal steps: active lanes, whether one of them has padding, and the number of steps.

    Args:
        padded: Whether each step of each lane has padding; lanes with most steps first.

    >>> active_lanes([[False] * 4, [False, True], [True]])
    [(3, True, 1), (2, True, 1), (1, False, 2)]
    """
    kinds = []
    for step in range(len(padded[0])):
        now = [lane[step] for lane in padded if len(lane) > step]
        kinds.append((len(now), any(now)))
    return [(*kind, len(list(steps))) for kind, steps in itertools.groupby(kinds)]


def _padded(phase_run: PhaseRun) -> list[bool]:
    """Return for each step whether it has padding that the model must mask."""
    leaves_out = phase_run.step.program.task.model.may_normalize_batches
    return [leaves_out and padded for padded in phase_run.batches.padded]


def _copy(carry: Carry) -> Carry:
    return Carry(*(tree.clone() for tree in carry))
