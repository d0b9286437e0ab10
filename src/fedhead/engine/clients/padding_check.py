"""Padding check: losses and models must not depend on the padding rows of a batch.

All batches have the same size, so the last one of an epoch is padded with rows of weight 0. A loss that takes a plain
mean over the batch includes the padding and silently trains a different model. So does a model that mixes rows.
BatchNorm layers ignore padding (`models.batch_norm`), but user code may not. Therefore each phase's loss is tested on a
few rows before training: replacing the padding by other samples must not change its value, its gradient or the running
statistics.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput
from fedhead.core.training import global_generators
from fedhead.core.training.batch import Batch
from fedhead.core.tree.inputs import map_inputs
from fedhead.executors.client.client_round import PhaseRun, phase_runs
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import Vectorizer, loss_name

ROWS = 4  # number of samples, and of padding rows, to test a loss with
TOLERANCE = 1e-4  # relative; equal inputs give equal values up to rounding
TOLERANCE_BF16 = 1e-2
_OUTCOMES = ("its value changes", "its gradient changes", "the model's running statistics change")


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
    ids = torch.from_numpy(job.indices[k]).to(program.pool.device)
    # Iterate over the phases as an executor does, but send each back untrained.
    runs = phase_runs(program, job.inputs(k), job.batches(k), Vectorizer())
    phase_run = next(runs)
    for number in range(max(phases) + 1):
        if number in phases:
            samples = (
                ids if phase_run.step.phase.data == "private" else torch.from_numpy(job.public_indices).to(ids.device)
            )
            _check_phase(phase_run, samples)
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
    size = {"private": len(job.indices[k]), "public": len(job.public_indices)}
    return {
        number
        for number, (phase, schedule) in enumerate(zip(phases, job.schedules[k], strict=True))
        if size[phase.data] > 1 and not schedule.weight.all()
    }


def _check_phase(phase_run: PhaseRun, samples: Tensor) -> None:
    step, batches = phase_run[:2]
    program, pool = step.program, step.program.source(step.phase.data)
    # not always the last step, because training may end in the middle of an epoch
    last = int((batches.weight == 0).any(-1).nonzero()[-1])
    full, key = batches.batch(last, pool)
    real, padding = full.weight.nonzero()[:ROWS, 0], (full.weight == 0).nonzero()[:ROWS, 0]
    tested = torch.cat([real, padding])
    batch = Batch(map_inputs(lambda t: t[tested], full.x), *(t[tested] for t in full[1:]))
    # Replace each padding row by the next sample, so that the loss sees real samples only.
    places = (batch.indices[len(real) :].unsqueeze(1) == samples).int().argmax(1)
    others = torch.cat([batch.indices[: len(real)], samples[(places + 1) % len(samples)]])
    changed_batch = pool.batch(others, batch.weight, batch.key if pool.transform.augment else None)
    tolerance = TOLERANCE_BF16 if program.bf16 else TOLERANCE
    outcomes = _outcome(phase_run, batch, key), _outcome(phase_run, changed_batch, key)
    for changed, a, b in zip(_OUTCOMES, *outcomes, strict=True):
        if (a - b).norm() > tolerance * a.norm().clamp_min(1e-3):
            raise BadInput(
                f"{loss_name(step.phase)}: {changed} with the padding rows of a batch, whose weight is 0: use "
                "batch.weight, as fh.losses.cross_entropy does, or return one value per sample; a model that mixes the "
                "rows of its batch needs nn.BatchNorm, which leaves padding rows out, or none, as nn.GroupNorm"
            )


def _outcome(phase_run: PhaseRun, batch: Batch, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, gradient and running statistics of a batch, each flattened."""
    step, _, carry, w, inputs = phase_run
    leaves = carry.params.map(lambda t: t.detach().requires_grad_())
    with torch.enable_grad(), global_generators.seeded(0, batch.weight.device):  # for user code that draws
        value, stats = step.program.loss(step.phase)(leaves, w, batch, key, inputs)
        grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    kept = [t.detach().flatten() for t in stats.values()]
    return value.detach(), torch.cat([g.flatten() for g in grads]), torch.cat(kept) if kept else value.new_zeros(0)
