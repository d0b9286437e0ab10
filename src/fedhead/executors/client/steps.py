"""The steps of local training: one step as a pure function, and the plain loop over the steps of a phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedhead.algorithm.client import ClientInputs
from fedhead.algorithm.phase import Phase
from fedhead.core.training import random
from fedhead.core.training.batch import Batch
from fedhead.core.training.optimizers import Optimizer, clone_for_in_place
from fedhead.core.tree.inputs import channels_last, map_inputs
from fedhead.core.tree.tree import Tree, Weights, cat
from fedhead.data.pool import Pool
from fedhead.executors.client.program import ClientProgram, Vectorizer


class PhaseBatches(NamedTuple):
    """The batches of a phase: rows and weights a step, and the key that augmentation and dropout draw from."""

    rows: Tensor  # [steps, (K,) batch]
    weight: Tensor  # [steps, (K,) batch]
    key: Tensor  # [(K)]
    widths: list[int] | None  # a step's active clients, longest first; None without a client axis
    padded: Sequence[bool] = ()  # whether a step's batch has padding, of any active client

    def batch(self, step: int | Tensor, pool: Pool, width: int | None = None) -> tuple[Batch, Tensor]:
        """The batch of a step, for the first `width` clients, and the key for what the model draws in it."""
        index, weight, key = self.at(step)
        if width is not None:
            index, weight, key = index[:width], weight[:width], key[:width]
        return draw_batch(pool, index, weight, key)

    def at(self, step: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows, weights and key of a step."""
        return _at(self.rows, step), _at(self.weight, step), random.fold_in(self.key, step)

    def lengths(self) -> list[int]:
        """Each client's number of steps in a stack."""
        assert self.widths is not None, "a stack has widths"
        found: list[int] = (np.array(self.widths)[:, None] > np.arange(len(self.key))).sum(0).tolist()
        return found

    def __len__(self) -> int:
        return len(self.rows)


def draw_batch(pool: Pool, index: Tensor, weight: Tensor, key: Tensor) -> tuple[Batch, Tensor]:
    """The samples of one step, augmented by its key, and the key for what the model draws."""
    if not pool.transform.augment:
        return pool.batch(index, weight), key
    place = torch.arange(index.shape[-1], device=index.device)
    return pool.batch(index, weight, random.fold_in(key.unsqueeze(-1), place)), random.fold_in(key, 1 << 20)


class Carry(NamedTuple):
    """What a step changes."""

    params: Tree  # what the phase trains
    stats: Tree  # running statistics
    opt: Tree  # the optimizer's state
    loss: Tree  # `total`: the sum of the steps' losses, each times the step's samples


@dataclass(frozen=True)
class Step:
    """One optimization step of a phase, for one client or, vectorized, for a stack of them."""

    program: ClientProgram
    phase: Phase
    optimizer: Optimizer
    vectorizer: Vectorizer
    names: list[str]  # what is trained

    def begin(self, w: Weights, opt: Tree | None, key: Tensor) -> Carry:
        """The carry before the first step.

        Args:
            w: The model.
            opt: The optimizer's state where it survived the last round.
            key: One key per client, which says how many there are.
        """
        params = Tree({name: w[name] for name in self.names})
        opt = self.vectorizer.init(self.optimizer)(params) if opt is None else opt
        if self.program.in_place:
            params, opt = clone_for_in_place(params, opt)
        total = torch.zeros(key.shape, dtype=self.program.pool.dtype, device=key.device)
        return Carry(params, w.stats, opt, Tree(total=total))

    def __call__(
        self, carry: Carry, w: Weights, batch: Batch, key: Tensor, inputs: ClientInputs, padded: bool = True
    ) -> Carry:
        """The carry after one step; `w` holds what the phase does not train, `padded` says if there may be padding."""
        program = self.program
        if program.channels_last:
            batch = batch._replace(x=map_inputs(channels_last, batch.x))
        leaves = carry.params.map(lambda t: t.detach().requires_grad_())
        loss = self.vectorizer.loss(program, self.phase, padded)
        with torch.enable_grad():
            losses, stats = loss(leaves, w.replace(carry.stats), batch, key, inputs)
            grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            loss_so_far = add_loss(carry.loss, losses, batch.weight, program.in_place)
            g = Tree(zip(self.names, grads, strict=True))
            if program.changes_gradients(self.phase):
                g = self.vectorizer.correct(program, self.phase)(g, inputs)
            # A phase with its own optimizer may follow the run's schedule: client.lr is the run's rate in this round.
            optimizer = self.optimizer
            if self.phase.scheduled:
                lr = inputs.lr * (optimizer.lr / program.task.local.optimizer.lr)
            else:
                lr = torch.zeros_like(inputs.lr) + optimizer.lr
            if program.in_place:
                params, opt = carry.params, carry.opt
                optimizer.step_in_place(params, g, opt, lr)
            else:
                params, opt = optimizer.step(carry.params, g, carry.opt, lr)
            return Carry(params, stats.detach(), opt, loss_so_far)


def add_loss(so_far: Tree, losses: Tensor, weight: Tensor, in_place: bool) -> Tree:
    """Add a step's loss [(K)], times the samples of its batch; it stays on the device."""
    total: Tensor = so_far["total"]
    if losses.dtype != total.dtype:
        losses = losses.to(total.dtype)
    if in_place:
        total.addcmul_(losses, weight.sum(-1))
        return so_far
    return Tree(total=torch.addcmul(total, losses, weight.sum(-1)))


class PhaseRun(NamedTuple):
    """A phase to be trained."""

    step: Step
    batches: PhaseBatches
    carry: Carry  # what the steps change
    w: Weights  # the model, of which the steps read what they don't train
    inputs: ClientInputs


Trainer = Callable[[PhaseRun], Carry]  # runs all steps of a phase


def train_eagerly(phase_run: PhaseRun) -> Carry:
    """Step after step; in a stack, clients that have run out of batches are set aside."""
    step, batches, carry, w, inputs = phase_run
    pool = step.program.source(step.phase.data)
    done: list[Carry] = []  # the clients that ran out of batches, last ones first
    width = None if batches.widths is None else len(batches.key)
    for number in range(len(batches)):
        if width is not None and batches.widths is not None and batches.widths[number] < width:
            active = slice(0, batches.widths[number])
            done.append(take_clients(carry, slice(active.stop, width)))
            carry, w = take_clients(carry, active), w.map(itemgetter(active))
            inputs, width = step.vectorizer.take(inputs, active), active.stop
        batch, key = batches.batch(number, pool, width)
        carry = step(carry, w, batch, key, inputs, batches.padded[number])
    return Carry(*map(cat, zip(carry, *reversed(done), strict=True))) if done else carry


def take_clients(carry: Carry, clients: slice | Tensor) -> Carry:
    """Return what the steps of some clients of a stack change."""
    return Carry(*(tree.map(itemgetter(clients)) for tree in carry))


def _at(table: Tensor, step: int | Tensor) -> Tensor:
    return table[step] if isinstance(step, int) else table.index_select(0, step.reshape(1))[0]
