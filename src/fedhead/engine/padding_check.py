"""The padding check: a loss must not depend on the rows that only fill up a batch.

Batches have one size, so the last one of an epoch is topped up with rows of weight 0. A loss that takes a plain mean
over its batch counts them, and trains another model than the paper's without any sign of it. So each phase's loss is
tried on a few rows before it trains anything: other samples in place of the padding must change neither its value nor
its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedhead.algorithm.client import Client, ClientInputs
from fedhead.algorithm.phase import Phase
from fedhead.core.batch import Batch, Output
from fedhead.core.errors import BadInput
from fedhead.core.inputs import Inputs, map_inputs
from fedhead.core.tree import Tree, Weights
from fedhead.executors.client_round import phase_runs
from fedhead.executors.job import Job
from fedhead.executors.program import Program, Vectorizer, loss_name
from fedhead.executors.steps import PhaseRun

ROWS = 4  # samples, and rows of padding, that a loss is tried on
TOLERANCE = 1e-4  # relative; what a loss does with equal numbers is equal to rounding
TOLERANCE_BF16 = 1e-2


class PaddingCheck:
    """Tries each loss once, as soon as some client has a batch with padding for it."""

    def __init__(self) -> None:
        self._tried: set[tuple[str, int, int]] = set()

    def __call__(self, job: Job, group: int) -> None:
        """Raise `BadInput` for a loss of this job that padding rows change.

        Args:
            job: The work of some clients of one architecture, with its batches drawn.
            group: The architecture's number.
        """
        name = repr(job.program.algorithm)
        count = len(job.schedules[0]) if job.schedules else 0
        untried = {number for number in range(count) if (name, group, number) not in self._tried}
        for k in range(len(job.clients)) if untried else ():
            if padded := untried & _padded_phases(job, k):
                check(job, k, padded)
                self._tried |= {(name, group, number) for number in padded}
                untried -= padded


def check(job: Job, k: int, phases: set[int]) -> None:
    """Raise `BadInput` where a loss of these phases depends on the padding of the client at place `k`."""
    program = job.program
    probe = _EvaluationProgram(program.algorithm, program.task, program.pool, program.public, bf16=program.bf16)
    own = torch.from_numpy(job.rows[k]).to(program.pool.device)
    # Every phase is handed out as an executor would train it, and is given back untrained.
    work = phase_runs(probe, job.inputs(k), job.batches(k), Vectorizer())
    phase_run = next(work)
    for number in range(max(phases) + 1):
        if number in phases:
            rows = own if phase_run.step.phase.data == "private" else torch.from_numpy(job.public_rows).to(own.device)
            _check_phase(phase_run, rows)
        if number < max(phases):
            phase_run = work.send(phase_run.carry)
    work.close()


def _padded_phases(job: Job, k: int) -> set[int]:
    """The phases in which a client has padding that other samples can take the place of."""
    phases = job.program.algorithm.phases(job.program.task)
    size = {"private": len(job.rows[k]), "public": len(job.public_rows)}
    return {
        number
        for number, (phase, schedule) in enumerate(zip(phases, job.schedules[k], strict=True))
        if size[phase.data] > 1 and len(schedule) and not schedule.weight[-1].all()
    }


def _check_phase(phase_run: PhaseRun, rows: Tensor) -> None:
    step, batches, carry, w, inputs = phase_run
    pool, phase = step.program.source(step.phase.data), step.phase
    batch, key = batches.batch(len(batches) - 1, pool)
    there, padding = batch.weight.nonzero()[:ROWS, 0], (batch.weight == 0).nonzero()[:ROWS, 0]
    tried = torch.cat([there, padding])
    one = Batch(map_inputs(lambda t: t[tried], batch.x), *(t[tried] for t in batch[1:]))
    # The padding's other content: of each of its rows the sample after it, so that a loss sees real samples only.
    places = (one.rows[len(there) :].unsqueeze(1) == rows).int().argmax(1)
    others = torch.cat([one.rows[: len(there)], rows[(places + 1) % len(rows)]])
    other = pool.batch(others, one.weight, one.key if pool.transform.augment else None)
    gradient = _gradient(step.program, phase, carry.params, w)
    value, slope = gradient(one, key, inputs)
    value_other, slope_other = gradient(other, key, inputs)
    tolerance = TOLERANCE_BF16 if step.program.bf16 else TOLERANCE
    moved = bool((value - value_other).abs() > tolerance * value.abs().clamp_min(1e-3))
    turned = bool((slope - slope_other).norm() > tolerance * slope.norm().clamp_min(1e-3))
    if moved or turned:
        raise BadInput(
            f"{loss_name(phase)}: its {'value' if moved else 'gradient'} changes with the padding rows of a batch, "
            f"whose weight is 0: use batch.weight, as fh.losses.cross_entropy does, or return one value per sample"
        )


def _gradient(
    program: Program, phase: Phase, params: Tree, w: Weights
) -> Callable[[Batch, Tensor, ClientInputs], tuple[Tensor, Tensor]]:
    """The loss's value and its gradient, laid out in one line, as functions of the batch."""
    loss = program.loss(phase)

    def run(batch: Batch, key: Tensor, inputs: ClientInputs) -> tuple[Tensor, Tensor]:
        leaves = params.map(lambda t: t.detach().requires_grad_())
        tensors = list(leaves.values())
        with torch.enable_grad():
            value, _ = loss(leaves, w, batch, key, inputs)
            grads = torch.autograd.grad(value, tensors, allow_unused=True, materialize_grads=True)
        return value.detach(), torch.cat([g.flatten() for g in grads])

    return run


class _EvaluationClient(Client):
    """A client whose model is in evaluation mode: padding rows do enter BatchNorm's batch statistics, with any loss."""

    def apply(self, w: Weights, x: Inputs, train: bool = True) -> Output:
        """Run a model on a batch without batch statistics and dropout."""
        return super().apply(w, x, train=False)


class _EvaluationProgram(Program):
    def client(self, inputs: ClientInputs, key: Tensor | None = None, data: str = "private") -> Client:
        """The client behind these tensors, in evaluation mode."""
        arguments: tuple[Any, ...] = (self.task, inputs, self.source(data), self.chunk, self.bf16, key, self.public)
        return _EvaluationClient(*arguments)
