"""Round of one client or of a stack of clients: a step, the steps of a phase, and all phases.

All functions work on tensors with or without a client axis, so all executors share them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedhead.algorithm.client import ClientInputs
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Phase, Reply
from fedhead.algorithm.task import Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.core.training.batch import Batch
from fedhead.core.training.batching import Noise
from fedhead.core.training.optimizers import Optimizer, clone_for_in_place
from fedhead.core.tree.inputs import channels_last, map_inputs
from fedhead.core.tree.tree import Tree, Weights, cat
from fedhead.data.pool import Pool
from fedhead.executors.client.program import ClientProgram, Vectorizer, loss_name
from fedhead.models.split_model import SplitModel
from fedhead.privacy import noise

OPTIMIZER = "~optimizer"  # entry of the client state that holds the optimizer state


# -- the steps of a phase -----------------------------------------------------------------------------
class PhaseBatches(NamedTuple):
    """Batches of a phase: sample indices and weights per step, and the random key of augmentation and dropout."""

    indices: Tensor  # [steps, (K,) batch]
    weight: Tensor  # [steps, (K,) batch]
    key: Tensor  # [(K)]
    widths: list[int] | None  # active clients per step, most steps first; None without a client axis
    padded: Sequence[bool] = ()  # per step: whether any active client's batch is padded
    noise: Sequence[Noise] = ()  # of DP-SGD, one per client; empty: none

    def batch(self, step: int | Tensor, pool: Pool, width: int | None = None) -> tuple[Batch, Tensor]:
        """Return the batch of a step for the first `width` clients, and the model's random key."""
        index, weight, key = self.at(step)
        if width is not None:
            index, weight, key = index[:width], weight[:width], key[:width]
        return draw_batch(pool, index, weight, key)

    def at(self, step: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sample indices, weights and random key of a step."""
        return _at(self.indices, step), _at(self.weight, step), random.fold_in(self.key, step)

    def lengths(self) -> list[int]:
        """Return the number of steps of each client in a stack."""
        assert self.widths is not None, "a stack has widths"
        steps: list[int] = (np.array(self.widths)[:, None] > np.arange(len(self.key))).sum(0).tolist()
        return steps

    def __len__(self) -> int:
        return len(self.indices)


def draw_batch(pool: Pool, index: Tensor, weight: Tensor, key: Tensor) -> tuple[Batch, Tensor]:
    """Return the augmented batch of a step, and the model's random key."""
    if not pool.transform.augment:
        return pool.batch(index, weight), key
    place = torch.arange(index.shape[-1], device=index.device)
    return pool.batch(index, weight, random.fold_in(key.unsqueeze(-1), place)), random.fold_in(key, 1 << 20)


class Carry(NamedTuple):
    """Tensors that a step updates."""

    params: Tree  # trained parameters
    stats: Tree  # running statistics
    opt: Tree  # optimizer state
    loss: Tree  # `total`: sum of the losses, each weighted by the samples of its step


@dataclass(frozen=True)
class Step:
    """Optimization step of a phase, for one client or, vectorized, for a stack of clients."""

    program: ClientProgram
    phase: Phase
    optimizer: Optimizer
    vectorizer: Vectorizer
    names: list[str]  # trained parameters
    noise: Sequence[Noise] = ()  # of DP-SGD, one per client; empty: none

    def begin(self, w: Weights, opt: Tree | None, key: Tensor) -> Carry:
        """Return the carry before the first step.

        Args:
            w: Weights of the model.
            opt: Optimizer state from the last round; None: a new one.
            key: Random keys, one per client; their shape gives the number of clients.
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
        """Return the carry after one step; `w` holds the untrained weights, `padded` allows padding in the batch."""
        program = self.program
        if program.channels_last:
            batch = batch._replace(x=map_inputs(channels_last, batch.x))
        weights = w.replace(carry.stats)
        if self.noise:
            g = self._private_gradient(carry.params, weights, batch, key, inputs)
            stats, loss_so_far = carry.stats, carry.loss
        else:
            leaves = carry.params.map(lambda t: t.detach().requires_grad_())
            loss = self.vectorizer.loss(program, self.phase, padded)
            with torch.enable_grad():
                losses, stats = loss(leaves, weights, batch, key, inputs)
                tensors = list(leaves.values())
                grads = torch.autograd.grad(losses.sum(), tensors, allow_unused=True, materialize_grads=True)
            g = Tree(zip(self.names, grads, strict=True))
            with torch.no_grad():
                loss_so_far = add_loss(carry.loss, losses, batch.weight, program.in_place)
        with torch.no_grad():
            if program.changes_gradients(self.phase):
                g = self.vectorizer.correct(program, self.phase)(g, inputs)
            # inputs.lr is the run's scheduled rate: a phase with its own optimizer scales it, or ignores the schedule
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

    def _private_gradient(self, params: Tree, w: Weights, batch: Batch, key: Tensor, inputs: ClientInputs) -> Tree:
        """Return (Σ clip(g_i, C) + N(0, z²C²I)) / B of each client (Abadi et al., 2016, Algorithm 1)."""
        protection = self.program.privacy
        assert protection is not None, "only DP-SGD has noise"
        with torch.no_grad():
            total = self.vectorizer.clipped_sum(self.program, self.phase)(params, w, batch, key, inputs)
        # the clients of a stack that are still active come first
        active = list(zip(key.reshape(-1).tolist(), self.noise, strict=False))
        sources = [noise.generator(protection.test_seed, client) for client, _ in active]

        def noisy(t: Tensor) -> Tensor:
            rows = t.reshape(len(active), -1)
            drawn = [
                noise.gaussian(source, (rows.shape[1],), each.multiplier * protection.clip)
                for source, (_, each) in zip(sources, active, strict=True)
            ]
            samples = torch.tensor([[float(each.samples)] for _, each in active], dtype=t.dtype, device=t.device)
            return ((rows + torch.stack(drawn).to(rows)) / samples).reshape(t.shape)

        return Tree({name: noisy(total[name]) for name in self.names})


def add_loss(so_far: Tree, losses: Tensor, weight: Tensor, in_place: bool) -> Tree:
    """Add the loss of a step [(K)], weighted by its samples, without a device synchronization."""
    total: Tensor = so_far["total"]
    if losses.dtype != total.dtype:
        losses = losses.to(total.dtype)
    if in_place:
        total.addcmul_(losses, weight.sum(-1))
        return so_far
    return Tree(total=torch.addcmul(total, losses, weight.sum(-1)))


class PhaseRun(NamedTuple):
    """Inputs of the training of one phase."""

    step: Step
    batches: PhaseBatches
    carry: Carry  # updated by the steps
    w: Weights  # the whole model; steps read its untrained part
    inputs: ClientInputs


Trainer = Callable[[PhaseRun], Carry]  # trains all steps of a phase


def train_eagerly(phase_run: PhaseRun) -> Carry:
    """Train step by step; clients of a stack that have no batches left are removed from it."""
    step, batches, carry, w, inputs = phase_run
    pool = step.program.source(step.phase.data)
    done: list[Carry] = []  # removed clients, fewest steps first
    width = None if batches.widths is None else len(batches.key)
    for number in range(len(batches)):
        if width is not None and batches.widths is not None and batches.widths[number] < width:
            active = slice(0, batches.widths[number])
            done.append(take_clients(carry, slice(active.stop, width)))
            carry, w = take_clients(carry, active), w.map(itemgetter(active))
            inputs, width = inputs.take(active), active.stop
        batch, key = batches.batch(number, pool, width)
        carry = step(carry, w, batch, key, inputs, batches.padded[number])
    return Carry(*map(cat, zip(carry, *reversed(done), strict=True))) if done else carry


def take_clients(carry: Carry, clients: slice | Tensor) -> Carry:
    """Return the carry of some clients of a stack."""
    return Carry(*(tree.map(itemgetter(clients)) for tree in carry))


def _at(table: Tensor, step: int | Tensor) -> Tensor:
    return table[step] if isinstance(step, int) else table.index_select(0, step.reshape(1))[0]


# -- a round ------------------------------------------------------------------------------------------
def phase_runs(
    program: ClientProgram, inputs: ClientInputs, batches: list[PhaseBatches], vectorizer: Vectorizer
) -> Generator[PhaseRun, Carry, Reply]:
    """Yield each phase of a client's (or stack's) round for training, and return the reply.

    Args:
        program: Algorithm, task and data.
        inputs: Broadcast, state and data of the client.
        batches: Batches of each phase.
        vectorizer: Vectorizes functions of one client over a stack.

    Yields:
        One `PhaseRun` per phase; the caller sends back the carry after its steps.

    Returns:
        Reply of the client.
    """
    with torch.no_grad():
        w = vectorizer.start(program)(inputs)
    if program.channels_last:
        w = w.map(channels_last)
    optimizer_states: dict[str, Any] = {}
    losses: list[Tensor] = []
    # Only `finish` sees these entries: all phases have a state of one schema, so that they can share a CUDA graph.
    saved: dict[str, Weights] = {}
    for number, (phase, phase_batches) in enumerate(zip(program.algorithm.phases(program.task), batches, strict=True)):
        model = w if phase.model == "model" else inputs.state[phase.model]
        optimizer = phase.optimizer or program.task.local.optimizer
        names = trained_names(model, phase, program.task.model)
        step = Step(program, phase, optimizer, vectorizer, names, phase_batches.noise)
        opt = inputs.state[OPTIMIZER][str(number)] if program.persistent else None
        carry = step.begin(model, opt, phase_batches.key)
        carry = yield PhaseRun(step, phase_batches, carry, model, inputs)
        model, optimizer_states[str(number)] = model.replace({**carry.stats, **carry.params}), carry.opt
        losses.append(carry.loss["total"])
        if phase.model == "model":
            w = model
        else:
            inputs = inputs._replace(state=inputs.state.replace({phase.model: model}))
        if phase.saves is not None:
            saved[phase.saves] = model.part(*phase.trains).replace(model.stats)
    with torch.no_grad():
        reply = vectorizer.finish(program)(w, inputs._replace(state=inputs.state.replace(saved)))
    if program.persistent and optimizer_states:
        reply = reply._replace(keep=reply.keep.replace({OPTIMIZER: Tree(optimizer_states)}))
    # losses are not part of what DP-SGD protects
    return reply._replace(losses=Tree() if program.privacy is not None else _mean_loss(losses, batches))


def _mean_loss(totals: list[Tensor], batches: list[PhaseBatches]) -> Tree:
    """Return the mean loss over all steps, weighted by samples; NaN without steps."""
    if not totals:
        return Tree()
    samples = torch.stack([phase.weight.sum((0, -1)) for phase in batches])
    return Tree(train=torch.stack(totals).sum(0) / samples.sum(0))


def local_round(
    program: ClientProgram,
    inputs: ClientInputs,
    batches: list[PhaseBatches],
    vectorizer: Vectorizer,
    train: Trainer = train_eagerly,
) -> Reply:
    """Run all phases of a client's (or stack's) round; `train` trains one phase. See `phase_runs` for the others."""
    phases = phase_runs(program, inputs, batches, vectorizer)
    try:
        phase_run = next(phases)
        while True:
            phase_run = phases.send(train(phase_run))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's return value is untyped


def initial_optimizer_states(method: Method, task: Task, w: Weights, state: Tree) -> Tree:
    """Return the optimizer states of a client before its first round, one entry per phase."""
    phases = method.phases(task)
    params = initial_trained(method, phases, task, w, state)
    optimizers = [phase.optimizer or task.local.optimizer for phase in phases]
    return Tree({str(n): optimizer.init(p) for n, (optimizer, p) in enumerate(zip(optimizers, params, strict=True))})


def initial_trained(method: Method, phases: Sequence[Phase], task: Task, w: Weights, state: Tree) -> list[Tree]:
    """Return the trained parameters of each phase before the first round.

    Raises:
        BadInput: If all parameters of a phase are frozen.
    """
    w = w.replace(method.init_server(w, task).get("model"))  # a method may add parameters to the model's
    trained = []
    for phase in phases:
        # names in the order of Method.start: the client's own parameters come first
        model = state.get("own", Weights()).replace(w) if phase.model == "model" else state[phase.model]
        trained.append(Tree({name: model[name] for name in trained_names(model, phase, task.model)}))
    return trained


def trained_names(w: Weights, phase: Phase, model: SplitModel) -> list[str]:
    """Return the names of the parameters that a phase trains.

    These are the parameters with its prefixes. Parameters fixed by the head are excluded unless the phase gives their
    full name. Frozen parameters are always excluded.

    Raises:
        BadInput: If all parameters of the phase are frozen.
    """
    candidates = list(w.part(*phase.trains).params)
    excluded = model.frozen | (model.fixed_by_head - set(phase.trains))
    names = [name for name in candidates if name not in excluded]
    if not names and (stuck := [name for name in candidates if name in model.frozen]):
        raise BadInput(
            f"{loss_name(phase)} trains only {', '.join(phase.trains)}, of which {stuck[0]!r} and all else is frozen: "
            f"freeze less, or choose a method that trains other parts"
        )
    return names
