"""Lanes: one CUDA stream a client, all of them captured in one CUDA graph that forks and joins.

For models that can't be stacked, and for federations of differing architectures: clients that share nothing but the
GPU train at the same time. Every lane is a plain, unlifted step on static tensors of its own; one graph makes one step
of every lane that is still active, or a few, after which the lanes wait for each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from dataclasses import replace
from functools import partial

import torch

from fedhead.algorithm.phase import Reply
from fedhead.executors.client_round import phase_runs
from fedhead.executors.graphs import Steps, blind, bucket, buckets, copy_into, kind, preparing, static
from fedhead.executors.job import Executor, Job
from fedhead.executors.program import Vectorizer
from fedhead.executors.steps import Carry, PhaseRun, Table

MANY = 4  # steps in a graph: each takes its time to be captured, for every lane


class Lane:
    """One client's static tensors and its step."""

    def __init__(self, phase_run: PhaseRun):
        self.step, self.last = phase_run.step, len(phase_run.table) - 1
        self.carry, self.w, self.inputs, self.table = static((*phase_run[2:], phase_run.table[:3]))
        self.counter = torch.zeros((), dtype=torch.int64, device=phase_run.table.rows.device)
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def load(self, phase_run: PhaseRun) -> None:
        """Copy a round's tensors in."""
        copy_into((self.carry, self.w, self.inputs, self.table), (*phase_run[2:], phase_run.table[:3]))
        self.counter.zero_()

    def __call__(self) -> None:
        """One step, in place; a lane that is done repeats its last batch, and what comes of it is thrown away."""
        pool = self.step.program.source(self.step.phase.data)
        rows, weight, start = self.table
        batch, key = Table(rows, weight, start, None).batch(self.counter.clamp(max=self.last), pool)
        new = self.step(self.carry, self.w, batch, key, self.inputs)
        with torch.no_grad():
            copy_into(self.carry, new)
            self.counter.add_(1)


class Bundle:
    """Lanes that run together, most steps first, and the graphs for the first few of them."""

    def __init__(self, work: list[PhaseRun]):
        self.lanes = [Lane(phase_run) for phase_run in work]
        self.sizes = buckets(len(work), least=1)
        self.graphs: dict[int, Steps] = {}  # by bucket
        self.preparing = 0.0

    def train(self, work: list[PhaseRun]) -> list[Carry]:
        """All steps of all lanes."""
        for lane, phase_run in zip(self.lanes, work, strict=True):
            lane.load(phase_run)
        done: dict[int, Carry] = {}
        for active, steps in spans([len(phase_run.table) for phase_run in work]):
            done |= {k: _copy(self.lanes[k].carry) for k in range(active, len(work)) if k not in done}
            size = bucket(active, self.sizes)
            if size not in self.graphs:
                self.graphs[size] = self._prepare(size)
            self.graphs[size].replay(steps)
        return [done.get(k) or _copy(lane.carry) for k, lane in enumerate(self.lanes)]

    def _prepare(self, size: int) -> Steps:
        lanes = self.lanes[:size]
        with preparing(self):
            before = [(lane.carry, _copy(lane.carry), lane.counter.clone()) for lane in lanes]
            for _ in range(2):  # libraries select their kernels and take their work space at the first calls
                self._fork(lanes, 1)
            for lane, (carry, values, counter) in zip(lanes, before, strict=True):
                copy_into(carry, values)
                lane.counter.copy_(counter)
        return Steps(self, partial(self._fork, lanes), many=MANY)

    def _fork(self, lanes: list[Lane], steps: int) -> None:
        main = torch.cuda.current_stream()
        for lane in lanes:
            lane.stream.wait_stream(main)
            with torch.cuda.stream(lane.stream):
                for _ in range(steps):
                    lane()
        for lane in lanes:
            main.wait_stream(lane.stream)


class Lanes(Executor):
    """Runs clients side by side, one stream each, at most `size` at a time."""

    name = "lanes"

    def __init__(self, size: int = 32, most: int = 4):
        self.size = size
        self._bundles: OrderedDict[str, Bundle] = OrderedDict()
        self._most = most

    def run(self, job: Job) -> list[Reply]:
        """The replies, in the order of the job's clients."""
        return self.run_all([job])[0]

    def run_all(self, jobs: list[Job]) -> list[list[Reply]]:
        """The replies of several jobs at once, whose clients may differ in architecture."""
        places = [(j, k) for j, job in enumerate(jobs) for k in range(len(job.clients))]
        replies: dict[tuple[int, int], Reply] = {}
        for begin in range(0, len(places), self.size):
            part = places[begin : begin + self.size]
            replies.update(zip(part, self._together([(jobs[j], k) for j, k in part]), strict=True))
        return [[replies[j, k] for k in range(len(job.clients))] for j, job in enumerate(jobs)]

    def _together(self, clients: list[tuple[Job, int]]) -> list[Reply]:
        """Advance all clients' rounds from phase to phase, and train each phase side by side."""
        rounds: dict[int, Generator[PhaseRun, Carry, Reply]] = {}
        replies: dict[int, Reply] = {}
        for place, (job, k) in enumerate(clients):
            program = replace(job.program, channels_last=True)
            rounds[place] = phase_runs(program, job.inputs(k), job.tables(k), Vectorizer())
        outcome: dict[int, Carry | None] = dict.fromkeys(rounds)
        while outcome:
            work: dict[int, PhaseRun] = {}
            for place, carry in outcome.items():
                try:
                    work[place] = next(rounds[place]) if carry is None else rounds[place].send(carry)
                except StopIteration as end:
                    replies[place] = end.value
            outcome = dict(self._train(work))
        return [replies[place] for place in range(len(clients))]

    def _train(self, work: dict[int, PhaseRun]) -> dict[int, Carry]:
        idle = {place: phase_run.carry for place, phase_run in work.items() if not len(phase_run.table)}
        order = sorted((p for p in work if p not in idle), key=lambda p: (-len(work[p].table), p))
        if not order:
            return idle
        stretched = [blind(work[place]) for place in order]
        key = repr([kind(phase_run) for phase_run in stretched])
        if key not in self._bundles:
            self._bundles[key] = Bundle(stretched)
            while len(self._bundles) > self._most:
                self._bundles.popitem(last=False)
        bundle = self._bundles[key]
        self._bundles.move_to_end(key)
        before = bundle.preparing
        found = bundle.train(stretched)
        self.preparing += bundle.preparing - before
        return idle | dict(zip(order, found, strict=True))


def spans(lengths: list[int]) -> list[tuple[int, int]]:
    """How many lanes are active for how many steps, given the steps of each, most first.

    >>> spans([7, 4, 4, 1])
    [(4, 1), (3, 3), (1, 3)]
    """
    ends = sorted(set(lengths))
    return [(sum(n >= end for n in lengths), end - begin) for begin, end in zip([0, *ends], ends, strict=False)]


def _copy(carry: Carry) -> Carry:
    return Carry(*(tree.clone() for tree in carry))
