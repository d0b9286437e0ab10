"""Lanes executor: one CUDA stream per client, all captured in one CUDA graph that forks and joins.

Used for models that can't be stacked and for federations of several architectures. Each lane runs a plain step, without
vectorization, on its own static tensors. One graph runs one or a few steps of every active lane; then the lanes wait
for each other. Steps without padding have their own graphs, with torch's BatchNorm. Steps are compiled once per
architecture, for all of its lanes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import replace

import torch

from fedhead.algorithm.phase import Reply
from fedhead.core.system.errors import BadInput
from fedhead.executors.client.base import Executor, ExecutorReport
from fedhead.executors.client.client_round import Carry, PhaseRun, phase_runs
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import ClientProgram, Vectorizer
from fedhead.executors.lanes.lane_groups import LaneGroup
from fedhead.executors.lanes.lane_steps import CompiledSteps
from fedhead.executors.stack.step_graphs import cache_key, without_rows

MAX_GROUPS = 4  # cached groups of lanes, with their graphs


def on_tensor_cores(program: ClientProgram) -> bool:
    """Return whether convolutions run on tensor cores, which are faster with channels last.

    In plain float32 the default format is as fast or faster: 150 steps/s instead of 136, four architectures on an H200.
    """
    return program.bf16 or torch.backends.cudnn.allow_tf32


class Lanes(Executor):
    """Executor that trains clients concurrently, one CUDA stream each.

    Args:
        size: Maximum number of lanes at a time.
        compile: Whether to compile the steps, once per architecture.
    """

    name = "lanes"

    def __init__(self, size: int = 32, compile: bool = False):
        self.size = size
        self._compiled = CompiledSteps(compile)
        self._report = ExecutorReport()
        self._groups: OrderedDict[tuple[str, ...], LaneGroup] = OrderedDict()

    def train(self, job: Job) -> list[Reply]:
        """Train the clients of a job; replies are in the order of its clients."""
        return self.train_all([job])[0]

    def report(self) -> ExecutorReport:
        """Return the compile time and the compilation status."""
        return self._report

    def train_all(self, jobs: Sequence[Job]) -> list[list[Reply]]:
        """Train several jobs and return their replies; clients may differ in architecture."""
        if any(job.program.privacy is not None for job in jobs):  # a CUDA graph would repeat its noise
            raise BadInput("executor lanes: it can't draw the noise of sample_dp: use stack or loop")
        indices = [(j, k) for j, job in enumerate(jobs) for k in range(len(job.clients))]
        replies: dict[tuple[int, int], Reply] = {}
        for begin in range(0, len(indices), self.size):
            part = indices[begin : begin + self.size]
            replies.update(zip(part, self._run_concurrently([(jobs[j], k) for j, k in part]), strict=True))
        return [[replies[j, k] for k in range(len(job.clients))] for j, job in enumerate(jobs)]

    def _run_concurrently(self, clients: list[tuple[Job, int]]) -> list[Reply]:
        """Run the rounds of all clients phase by phase, and train each phase concurrently."""
        rounds: dict[int, Generator[PhaseRun, Carry, Reply]] = {}
        replies: dict[int, Reply] = {}
        for index, (job, k) in enumerate(clients):
            program = replace(job.program, channels_last=on_tensor_cores(job.program))
            rounds[index] = phase_runs(program, job.inputs(k), job.batches(k), Vectorizer())
        outcome: dict[int, Carry | None] = dict.fromkeys(rounds)
        while outcome:
            work: dict[int, PhaseRun] = {}
            for index, carry in outcome.items():
                try:
                    work[index] = next(rounds[index]) if carry is None else rounds[index].send(carry)
                except StopIteration as end:
                    replies[index] = end.value
            outcome = dict(self._train(work))
        return [replies[index] for index in range(len(clients))]

    def _train(self, work: dict[int, PhaseRun]) -> dict[int, Carry]:
        idle = {index: phase_run.carry for index, phase_run in work.items() if not len(phase_run.batches)}
        order = sorted((p for p in work if p not in idle), key=lambda p: (-len(work[p].batches), p))
        if not order:
            return idle
        phases = [without_rows(work[index]) for index in order]
        key = tuple(cache_key(phase_run) for phase_run in phases)
        if key not in self._groups:
            self._groups[key] = LaneGroup(phases, self._compiled)
            while len(self._groups) > MAX_GROUPS:
                self._groups.popitem(last=False)
        group = self._groups[key]
        self._groups.move_to_end(key)
        before = group.compile_seconds
        carries = group.train(phases)
        compile_seconds = self._report.compile_seconds + group.compile_seconds - before
        self._report = ExecutorReport(compile_seconds, self._compiled.complete)
        return idle | dict(zip(order, carries, strict=True))
