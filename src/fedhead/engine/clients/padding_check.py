"""Padding check: losses and models must not depend on the padding rows of a batch.

All batches have the same size, so the last one of an epoch is padded with rows of weight 0. A loss that takes a plain
mean over the batch includes the padding and silently trains a different model. So does a model that mixes rows.
BatchNorm layers ignore padding (`models.batch_norm`), but user code may not. Therefore each phase's loss is tested on a
few rows before training: replacing the padding by other samples must not change its value or gradient. The test runs
first in evaluation mode, where rows should be independent (else the model is at fault). It then runs in training mode,
where the running statistics must not change either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedhead.algorithm.client import Client, ClientInputs
from fedhead.algorithm.phase import Phase
from fedhead.core.system.errors import BadInput
from fedhead.core.training import global_generators
from fedhead.core.training.batch import Batch, Output
from fedhead.core.tree.inputs import Inputs, map_inputs
from fedhead.core.tree.tree import Tree, Weights
from fedhead.executors.client.client_round import PhaseRun, phase_runs
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import ClientProgram, Vectorizer, loss_name

ROWS = 4  # number of samples, and of padding rows, to test a loss with
TOLERANCE = 1e-4  # relative; equal inputs give equal values up to rounding
TOLERANCE_BF16 = 1e-2


class PaddingCheck:
    """Callable that tests each loss once, on the first client with a padded batch."""

    def __init__(self) -> None:
        self._tested: set[tuple[str, int, int]] = set()

    def __call__(self, job: Job, group: int) -> None:
        """Raise `BadInput` for a loss of this job that depends on padding.

        Args:
            job: Job of some clients of one architecture, with its batches drawn.
            group: Number of the architecture.
        """
        name = repr(job.program.algorithm)
        count = len(job.schedules[0]) if job.schedules else 0
        untested = {number for number in range(count) if (name, group, number) not in self._tested}
        for k in range(len(job.clients)) if untested and _has_padding(job) else ():
            if padded := untested & _padded_phases(job, k):
                check(job, k, padded)
                self._tested |= {(name, group, number) for number in padded}
                untested -= padded


def check(job: Job, k: int, phases: set[int]) -> None:
    """Raise `BadInput` if a loss of these phases depends on the padding of the client at index `k`."""
    program = job.program
    ids = torch.from_numpy(job.rows[k]).to(program.pool.device)
    # Iterate over the phases as an executor does, but send each back untrained.
    runs = phase_runs(program, job.inputs(k), job.batches(k), Vectorizer())
    phase_run = next(runs)
    for number in range(max(phases) + 1):
        if number in phases:
            rows = ids if phase_run.step.phase.data == "private" else torch.from_numpy(job.public_rows).to(ids.device)
            _check_phase(phase_run, rows)
        if number < max(phases):
            phase_run = runs.send(phase_run.carry)
    runs.close()


def _has_padding(job: Job) -> bool:
    """Return whether any batch has padding; clients of equal size share one weight table, which is checked once."""
    tables = {id(schedule.weight): schedule.weight for phases in job.schedules for schedule in phases}
    return not all(weight.all() for weight in tables.values())


def _padded_phases(job: Job, k: int) -> set[int]:
    """Return the phases in which a client has padding and other samples to replace it with."""
    phases = job.program.algorithm.phases(job.program.task)
    size = {"private": len(job.rows[k]), "public": len(job.public_rows)}
    return {
        number
        for number, (phase, schedule) in enumerate(zip(phases, job.schedules[k], strict=True))
        if size[phase.data] > 1 and not schedule.weight.all()
    }


def _check_phase(phase_run: PhaseRun, rows: Tensor) -> None:
    step, batches = phase_run[:2]
    program, pool = step.program, step.program.source(step.phase.data)
    # not always the last step, because training may end in the middle of an epoch
    last = int((batches.weight == 0).any(-1).nonzero()[-1])
    full, key = batches.batch(last, pool)
    real, padding = full.weight.nonzero()[:ROWS, 0], (full.weight == 0).nonzero()[:ROWS, 0]
    tested = torch.cat([real, padding])
    batch = Batch(map_inputs(lambda t: t[tested], full.x), *(t[tested] for t in full[1:]))
    # Replace each padding row by the next sample, so that the loss sees real samples only.
    indices = (batch.rows[len(real) :].unsqueeze(1) == rows).int().argmax(1)
    others = torch.cat([batch.rows[: len(real)], rows[(indices + 1) % len(rows)]])
    changed_batch = pool.batch(others, batch.weight, batch.key if pool.transform.augment else None)
    probe = _EvaluationProgram(program.algorithm, program.task, program.pool, program.public, bf16=program.bf16)
    name = loss_name(step.phase)
    if changed := _changed(probe, phase_run, batch, changed_batch, key):
        if _mixes_rows(probe, phase_run, batch, changed_batch, len(real)):
            raise BadInput(
                f"the model mixes the rows of its batch, also in evaluation mode, so that {name} depends on padding "
                f"rows, and a prediction on the samples beside it: use layers with running statistics "
                f"(nn.BatchNorm2d), or none over the batch (nn.GroupNorm)"
            )
        raise BadInput(
            f"{name}: {changed} with the padding rows of a batch, "
            f"whose weight is 0: use batch.weight, as fh.losses.cross_entropy does, or return one value per sample"
        )
    if changed := _changed(program, phase_run, batch, changed_batch, key):
        raise BadInput(
            f"{name}: {changed} with the padding rows of a batch as soon as the model is in training mode, so the "
            f"model mixes the rows of its batch: use nn.BatchNorm, which leaves padding rows out, or let each row be "
            f"computed from its own sample"
        )


def _changed(program: ClientProgram, phase_run: PhaseRun, batch: Batch, other: Batch, key: Tensor) -> str | None:
    """Return a description of what differs between two batches: loss, gradient or running statistics; or None."""
    step, _, carry, w, inputs = phase_run
    outcome = _outcome(program, step.phase, carry.params, w)
    names = ("its value changes", "its gradient changes", "the model's running statistics change")
    for name, a, b in zip(names, outcome(batch, key, inputs), outcome(other, key, inputs), strict=True):
        if _differ(a, b, program.bf16):
            return name
    return None


def _mixes_rows(program: ClientProgram, phase_run: PhaseRun, batch: Batch, other: Batch, samples: int) -> bool:
    """Return whether outputs for the first rows differ between two batches, which share these samples."""
    step, _, carry, w, inputs = phase_run
    client, trained = program.client(inputs, data=step.phase.data), w.replace(carry.params)
    with torch.no_grad(), global_generators.seeded(0, batch.weight.device):
        a, b = (client.apply(trained, x).logits[:samples] for x in (batch.x, other.x))
    return _differ(a, b, program.bf16)


def _differ(a: Tensor, b: Tensor, bf16: bool) -> bool:
    return bool((a - b).norm() > (TOLERANCE_BF16 if bf16 else TOLERANCE) * a.norm().clamp_min(1e-3))


def _outcome(
    program: ClientProgram, phase: Phase, params: Tree, w: Weights
) -> Callable[[Batch, Tensor, ClientInputs], tuple[Tensor, Tensor, Tensor]]:
    """Return a function from a batch to loss, gradient and running statistics, each flattened."""
    loss = program.loss(phase)

    def run(batch: Batch, key: Tensor, inputs: ClientInputs) -> tuple[Tensor, Tensor, Tensor]:
        leaves = params.map(lambda t: t.detach().requires_grad_())
        tensors = list(leaves.values())
        with torch.enable_grad(), global_generators.seeded(0, batch.weight.device):  # for user code that draws
            value, stats = loss(leaves, w, batch, key, inputs)
            grads = torch.autograd.grad(value, tensors, allow_unused=True, materialize_grads=True)
        kept = [t.detach().flatten() for t in stats.values()]
        return value.detach(), torch.cat([g.flatten() for g in grads]), torch.cat(kept) if kept else value.new_zeros(0)

    return run


class _EvaluationClient(Client):
    """Client whose model is in evaluation mode."""

    def apply(self, w: Weights, x: Inputs, train: bool = True, weight: Tensor | None = None) -> Output:
        """Apply the model without batch statistics and dropout."""
        return super().apply(w, x, train=False)


class _EvaluationProgram(ClientProgram):
    def client(
        self, inputs: ClientInputs, key: Tensor | None = None, data: str = "private", weight: Tensor | None = None
    ) -> Client:
        """Return the client of these tensors, in evaluation mode."""
        arguments: tuple[Any, ...] = (self.task, inputs, self.source(data), self.chunk, self.bf16, key, self.public)
        return _EvaluationClient(*arguments)
