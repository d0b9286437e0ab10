"""One client's round, or a stack's: phase after phase from what is received to what is sent.

Everything here and in `steps` (gathering batches, the gradient, the optimizer) works on tensors with or without a
client axis, so all executors share it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from fedhead.algorithm.base import Method
from fedhead.algorithm.client import ClientInputs
from fedhead.algorithm.phase import Phase, Reply
from fedhead.algorithm.task import Task
from fedhead.core.tree import Tree, Weights
from fedhead.executors.program import Program, Vectorizer
from fedhead.executors.steps import Carry, PhaseRun, Step, Table, Trainer, channels_last, train_eagerly

OPTIMIZER = "~optimizer"  # where a client's state keeps its optimizer, if that survives the round


def phase_runs(
    program: Program, inputs: ClientInputs, tables: list[Table], vectorizer: Vectorizer
) -> Generator[PhaseRun, Carry, Reply]:
    """A client's round, or a stack's: hands out each phase to be trained, is sent its outcome, returns the reply."""
    with torch.no_grad():
        w = vectorizer.start(program)(inputs)
    if program.channels_last:
        w = w.map(channels_last)
    kept: dict[str, Any] = {}
    for number, (phase, table) in enumerate(zip(program.algorithm.phases(program.task), tables, strict=True)):
        model = w if phase.on == "model" else inputs.state[phase.on]
        optimizer = phase.optimizer or program.task.local.optimizer
        step = Step(program, phase, optimizer, vectorizer, trained(model, phase, program.task.model.fixed))
        carry = step.begin(model, inputs.state[OPTIMIZER][str(number)] if program.persistent else None)
        carry = yield PhaseRun(step, table, carry, model, inputs)
        model, kept[str(number)] = model.replace({**carry.stats, **carry.params}), carry.opt
        if phase.on == "model":
            w = model
        else:
            inputs = inputs._replace(state=inputs.state.replace({phase.on: model}))
        if phase.saves is not None:
            inputs = inputs._replace(state=inputs.state.replace({phase.saves: model.part(*phase.trains)}))
    with torch.no_grad():
        reply = vectorizer.finish(program)(w, inputs)
    if program.persistent and kept:
        reply = reply._replace(keep=reply.keep.replace({OPTIMIZER: Tree(kept)}))
    return reply


def local_round(
    program: Program, inputs: ClientInputs, tables: list[Table], vectorizer: Vectorizer, train: Trainer = train_eagerly
) -> Reply:
    """A client's round, or a stack's, phase after phase."""
    work = phase_runs(program, inputs, tables, vectorizer)
    try:
        phase_run = next(work)
        while True:
            phase_run = work.send(train(phase_run))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's return value arrives untyped


def initial_optimizers(method: Method, task: Task, w: Weights, state: Tree) -> Tree:
    """The optimizers' state of a client before its first round, a phase each."""
    kept = {}
    w = w.replace(method.init_server(w, task).get("model"))  # a method may train more than the model has
    for number, phase in enumerate(method.phases(task)):
        # the order of the names is that of Method.start: what the client owns comes first
        model = state.get("own", Weights()).replace(w) if phase.on == "model" else state[phase.on]
        params = Tree({name: model[name] for name in trained(model, phase, task.model.fixed)})
        kept[str(number)] = (phase.optimizer or task.local.optimizer).init(params)
    return Tree(kept)


def trained(w: Weights, phase: Phase, fixed: frozenset[str]) -> list[str]:
    """The names that a phase trains: what lies under its prefixes, less what the head fixes unless named in full."""
    under = w.part(*phase.trains).params
    return [name for name in under if name not in fixed or name in phase.trains]
