"""The round of one client, or of a stack of clients: all phases, from what is received to what is sent.

Everything here and in `steps` (gathering batches, gradients, optimizer steps) works on tensors with or without a client
axis, so all executors share it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedhead.algorithm.client import ClientInputs
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Phase, Reply
from fedhead.algorithm.task import Task
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import channels_last
from fedhead.core.tree.tree import Tree, Weights
from fedhead.executors.client.program import ClientProgram, Vectorizer, loss_name
from fedhead.executors.client.steps import Carry, PhaseBatches, PhaseRun, Step, Trainer, train_eagerly

OPTIMIZER = "~optimizer"  # entry of a client's state that keeps its optimizer state from round to round


def phase_runs(
    program: ClientProgram, inputs: ClientInputs, batches: list[PhaseBatches], vectorizer: Vectorizer
) -> Generator[PhaseRun, Carry, Reply]:
    """Yield each phase of a client's (or stack's) round for training, and return the reply.

    Args:
        program: Algorithm, task and data.
        inputs: What the client receives, holds and sees.
        batches: The batches of each phase.
        vectorizer: Maps functions of one client to a stack of clients.

    Yields:
        One `PhaseRun` per phase; the caller sends back its outcome.

    Returns:
        The reply.
    """
    with torch.no_grad():
        w = vectorizer.start(program)(inputs)
    if program.channels_last:
        w = w.map(channels_last)
    optimizer_states: dict[str, Any] = {}
    losses: list[Tensor] = []
    first_state = inputs.state  # as the client kept it after its last round
    added: dict[str, Weights] = {}  # what phases save that its state has no entry for; only `finish` sees it
    for number, (phase, phase_batches) in enumerate(zip(program.algorithm.phases(program.task), batches, strict=True)):
        model = w if phase.on == "model" else inputs.state[phase.on]
        optimizer = phase.optimizer or program.task.local.optimizer
        step = Step(program, phase, optimizer, vectorizer, _trained_by(phase, model, program.task))
        opt = inputs.state[OPTIMIZER][str(number)] if program.persistent else None
        carry = step.begin(model, opt, phase_batches.key)
        carry = yield PhaseRun(step, phase_batches, carry, model, inputs)
        model, optimizer_states[str(number)] = model.replace({**carry.stats, **carry.params}), carry.opt
        losses.append(carry.loss["total"])
        if phase.on == "model":
            w = model
        else:
            inputs = inputs._replace(state=inputs.state.replace({phase.on: model}))
        if phase.saves is not None:
            replaced = first_state.get(phase.saves, model)
            # A state keeps its form from round to round: of the running statistics those that the replaced entry has.
            saved = model.part(*phase.trains).replace(model.stats.part(*replaced))
            if phase.saves in first_state:
                inputs = inputs._replace(state=inputs.state.replace({phase.saves: saved}))
            else:  # phases see states of one form: a graph that trains one of them serves all that are alike
                added[phase.saves] = saved
    with torch.no_grad():
        reply = vectorizer.finish(program)(w, inputs._replace(state=inputs.state.replace(added)))
    if program.persistent and optimizer_states:
        reply = reply._replace(keep=reply.keep.replace({OPTIMIZER: Tree(optimizer_states)}))
    return reply._replace(losses=_mean_loss(losses, batches))


def _mean_loss(totals: list[Tensor], batches: list[PhaseBatches]) -> Tree:
    """The mean loss over the steps of all phases, each weighted by its samples; NaN where there were no steps."""
    if not totals:
        return Tree()
    samples = torch.stack([each.weight.sum((0, -1)) for each in batches])
    return Tree(train=torch.stack(totals).sum(0) / samples.sum(0))


def local_round(
    program: ClientProgram,
    inputs: ClientInputs,
    batches: list[PhaseBatches],
    vectorizer: Vectorizer,
    train: Trainer = train_eagerly,
) -> Reply:
    """Run all phases of a client's (or stack's) round; `train` trains one phase. See `phase_runs`."""
    phases = phase_runs(program, inputs, batches, vectorizer)
    try:
        phase_run = next(phases)
        while True:
            phase_run = phases.send(train(phase_run))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's return value arrives untyped


def initial_optimizer_states(method: Method, task: Task, w: Weights, state: Tree) -> Tree:
    """Return the optimizer states of a client before its first round, one entry per phase."""
    phases = method.phases(task)
    params = initial_trained(method, phases, task, w, state)
    optimizers = [phase.optimizer or task.local.optimizer for phase in phases]
    return Tree({str(n): one.init(p) for n, (one, p) in enumerate(zip(optimizers, params, strict=True))})


def initial_trained(method: Method, phases: Sequence[Phase], task: Task, w: Weights, state: Tree) -> list[Tree]:
    """Return what each phase trains, as it is before the first round.

    Raises:
        BadInput: If all that a phase would train is frozen.
    """
    w = w.replace(method.init_server(w, task).get("model"))  # a method may train more parameters than the model has
    trained = []
    for phase in phases:
        # names in the order of Method.start: the client's own parameters come first
        model = state.get("own", Weights()).replace(w) if phase.on == "model" else state[phase.on]
        trained.append(Tree({name: model[name] for name in _trained_by(phase, model, task)}))
    return trained


def _trained_by(phase: Phase, w: Weights, task: Task) -> list[str]:
    return trained_names(w, phase, task.model.fixed_by_head, task.model.frozen)


def trained_names(w: Weights, phase: Phase, fixed_by_head: frozenset[str], frozen: frozenset[str]) -> list[str]:
    """Return the names of the parameters that a phase trains.

    These are the ones with its prefixes, without those fixed by the head unless the phase gives their full name, and
    without those that are frozen, whoever names them.

    Raises:
        BadInput: If all that the phase would train is frozen.
    """
    candidates = list(w.part(*phase.trains).params)
    held = frozen | (fixed_by_head - set(phase.trains))
    names = [name for name in candidates if name not in held]
    if not names and (stuck := [name for name in candidates if name in frozen]):
        raise BadInput(
            f"{loss_name(phase)} trains only {', '.join(phase.trains)}, of which {stuck[0]!r} and all else is frozen: "
            f"freeze less, or choose a method that trains other parts"
        )
    return names
