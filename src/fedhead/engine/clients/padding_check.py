"""The padding check: neither a loss nor a model may depend on the rows that only fill up a batch.

Batches have one size, so the last one of an epoch is topped up with rows of weight 0. A loss that takes a plain mean
over its batch counts them, and trains another model than the paper's without any sign of it; so does a model that
mixes the rows of its batch. BatchNorm layers leave padding out (`models.batch_norm`), a user's code may not. So
each phase's loss is tried on a few rows before it trains anything: other samples in place of the padding must change
neither its value nor its gradient, with the model in evaluation mode, where its rows are apart (or the model is to
blame), and then in training, where they must not change what the model keeps either.
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
        for k in range(len(job.clients)) if untried and _has_padding(job) else ():
            if padded := untried & _padded_phases(job, k):
                check(job, k, padded)
                self._tried |= {(name, group, number) for number in padded}
                untried -= padded


def check(job: Job, k: int, phases: set[int]) -> None:
    """Raise `BadInput` where a loss of these phases depends on the padding of the client at place `k`."""
    program = job.program
    own = torch.from_numpy(job.rows[k]).to(program.pool.device)
    # Every phase is handed out as an executor would train it, and is given back untrained.
    work = phase_runs(program, job.inputs(k), job.batches(k), Vectorizer())
    phase_run = next(work)
    for number in range(max(phases) + 1):
        if number in phases:
            rows = own if phase_run.step.phase.data == "private" else torch.from_numpy(job.public_rows).to(own.device)
            _check_phase(phase_run, rows)
        if number < max(phases):
            phase_run = work.send(phase_run.carry)
    work.close()


def _has_padding(job: Job) -> bool:
    """Return whether any batch has padding; clients with as many samples share the weights of their batches."""
    tables = {id(schedule.weight): schedule.weight for mine in job.schedules for schedule in mine}
    return not all(weight.all() for weight in tables.values())


def _padded_phases(job: Job, k: int) -> set[int]:
    """The phases in which a client has padding that other samples can take the place of."""
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
    # not always the last step: a number of steps may end in the middle of an epoch
    last = int((batches.weight == 0).any(-1).nonzero()[-1])
    batch, key = batches.batch(last, pool)
    there, padding = batch.weight.nonzero()[:ROWS, 0], (batch.weight == 0).nonzero()[:ROWS, 0]
    tried = torch.cat([there, padding])
    one = Batch(map_inputs(lambda t: t[tried], batch.x), *(t[tried] for t in batch[1:]))
    # The padding's other content: of each of its rows the sample after it, so that a loss sees real samples only.
    places = (one.rows[len(there) :].unsqueeze(1) == rows).int().argmax(1)
    others = torch.cat([one.rows[: len(there)], rows[(places + 1) % len(rows)]])
    other = pool.batch(others, one.weight, one.key if pool.transform.augment else None)
    probe = _EvaluationProgram(program.algorithm, program.task, program.pool, program.public, bf16=program.bf16)
    name = loss_name(step.phase)
    if changed := _changed(probe, phase_run, one, other, key):
        if _mixes_rows(probe, phase_run, one, other, len(there)):
            raise BadInput(
                f"the model mixes the rows of its batch, also in evaluation mode, so that {name} depends on padding "
                f"rows, and a prediction on the samples beside it: use layers with running statistics "
                f"(nn.BatchNorm2d), or none over the batch (nn.GroupNorm)"
            )
        raise BadInput(
            f"{name}: {changed} with the padding rows of a batch, "
            f"whose weight is 0: use batch.weight, as fh.losses.cross_entropy does, or return one value per sample"
        )
    if changed := _changed(program, phase_run, one, other, key):
        raise BadInput(
            f"{name}: {changed} with the padding rows of a batch as soon as the model is in training mode, so the "
            f"model mixes the rows of its batch: use nn.BatchNorm, which leaves padding rows out, or let each row be "
            f"computed from its own sample"
        )


def _changed(program: ClientProgram, phase_run: PhaseRun, one: Batch, other: Batch, key: Tensor) -> str | None:
    """Return what differs between two batches: the loss's value, its gradient, the running statistics, or None."""
    step, _, carry, w, inputs = phase_run
    outcome = _outcome(program, step.phase, carry.params, w)
    names = ("its value changes", "its gradient changes", "the model's running statistics change")
    for name, a, b in zip(names, outcome(one, key, inputs), outcome(other, key, inputs), strict=True):
        if _differ(a, b, program.bf16):
            return name
    return None


def _mixes_rows(program: ClientProgram, phase_run: PhaseRun, one: Batch, other: Batch, samples: int) -> bool:
    """Return whether outputs for the first rows, which are the same samples, differ between two batches."""
    step, _, carry, w, inputs = phase_run
    client, trained = program.client(inputs, data=step.phase.data), w.replace(carry.params)
    with torch.no_grad(), global_generators.seeded(0, one.weight.device):
        a, b = (client.apply(trained, batch.x).logits[:samples] for batch in (one, other))
    return _differ(a, b, program.bf16)


def _differ(a: Tensor, b: Tensor, bf16: bool) -> bool:
    return bool((a - b).norm() > (TOLERANCE_BF16 if bf16 else TOLERANCE) * a.norm().clamp_min(1e-3))


def _outcome(
    program: ClientProgram, phase: Phase, params: Tree, w: Weights
) -> Callable[[Batch, Tensor, ClientInputs], tuple[Tensor, Tensor, Tensor]]:
    """The loss's value, its gradient and the running statistics, each in one line, as functions of the batch."""
    loss = program.loss(phase)

    def run(batch: Batch, key: Tensor, inputs: ClientInputs) -> tuple[Tensor, Tensor, Tensor]:
        leaves = params.map(lambda t: t.detach().requires_grad_())
        tensors = list(leaves.values())
        with torch.enable_grad(), global_generators.seeded(0, batch.weight.device):  # users' code may draw from them
            value, stats = loss(leaves, w, batch, key, inputs)
            grads = torch.autograd.grad(value, tensors, allow_unused=True, materialize_grads=True)
        kept = [t.detach().flatten() for t in stats.values()]
        return value.detach(), torch.cat([g.flatten() for g in grads]), torch.cat(kept) if kept else value.new_zeros(0)

    return run


class _EvaluationClient(Client):
    """A client whose model is in evaluation mode."""

    def apply(self, w: Weights, x: Inputs, train: bool = True, weight: Tensor | None = None) -> Output:
        """Run a model on a batch without batch statistics and dropout."""
        return super().apply(w, x, train=False)


class _EvaluationProgram(ClientProgram):
    def client(
        self, inputs: ClientInputs, key: Tensor | None = None, data: str = "private", weight: Tensor | None = None
    ) -> Client:
        """The client behind these tensors, in evaluation mode."""
        arguments: tuple[Any, ...] = (self.task, inputs, self.source(data), self.chunk, self.bf16, key, self.public)
        return _EvaluationClient(*arguments)
