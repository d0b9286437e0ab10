"""The check of a stage: that it gives the same on every executor, and leaves the trained run as it is."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from fedhead.algorithm.method import METHODS, Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.engine.rounds.rounds import run_stage
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.metrics.records import StageResult
from fedhead.testing.components import check_options, instance
from fedhead.testing.failure import Check, CheckFailed, Skipped, as_check_failure, need_flower, run_checks
from fedhead.testing.purity import watched
from fedhead.testing.small import small_model
from fedhead.testing.trial import LOCAL, PlainLoop, Trial, check_padding, difference, final_tensors, load, store


def check_stage(
    stage: Stage | type[Stage],
    method: Method | None = None,
    *,
    local: LocalTraining = LOCAL,
    flower: bool = True,
) -> list[Check]:
    """Check that a stage keeps what fedhead relies on.

    It follows two rounds of a small federation: one client after another, many at once, over Flower's messages and
    after a checkpoint, which must all give the same numbers. Its hooks must be pure, its losses blind to padding rows,
    and the trained run stays as it is.

    Args:
        stage: The class, or an instance with the options to be checked.
        method: The method that it follows; None: FedAvg, or the built-in method with the head that the stage needs.
        local: How clients train.
        flower: Whether to run it over an in-process Flower grid too, where flwr is installed.

    Returns:
        The checks that were made, with the reason for each that was skipped.

    Raises:
        CheckFailed: In one line, what is wrong and how to fix it.
    """
    made = instance(stage, Stage)
    owner = type(made).__name__
    method = method or _method_with(made.head)
    trial = Trial(method, [small_model("batch", method.head)], local, rounds=2)
    with as_check_failure(owner, f"after {method.name or type(method).__name__}"):
        made.on_method(method)
    checks = {
        "options": lambda: check_options(made),
        "hooks": lambda: _hooks(trial, made, owner),
        "padding": lambda: _padding(trial, made, owner),
        "executors": lambda: _executors(trial, made, owner),
        "checkpoint": lambda: _checkpoint(trial, made, owner),
        "flower": lambda: _flower(trial, made, owner, flower),
    }
    return run_checks(checks)


def _method_with(head: str | None) -> Method:
    name = "fedavg" if head is None else next((n for n, cls in METHODS.items() if cls.head == head), "fedavg")
    return METHODS[name]()


def _padding(trial: Trial, stage: Stage, owner: str) -> None:
    with as_check_failure(owner, "on a batch with padding"):
        check_padding(trial.finished, stage.on_method(trial.method), trial.rounds + 1)


def _hooks(trial: Trial, stage: Stage, owner: str) -> None:
    simulation = trial.finished
    before = final_tensors(simulation)
    with as_check_failure(owner, "one client after another"):
        run_stage(simulation.using(PlainLoop(owner)), watched(stage.on_method(trial.method)))
    if gap := difference(before, final_tensors(simulation)):
        raise CheckFailed(f"{owner} changes the trained run ({gap}): return new trees, with .replace(...)")


def _executors(trial: Trial, stage: Stage, owner: str) -> None:
    simulation = trial.finished
    with as_check_failure(owner, "one client after another"):
        expected = _outcome(simulation, stage, Loop())
    with as_check_failure(owner, "with many clients at once"):
        if gap := difference(expected, _outcome(simulation, stage, Stack()), 1e-10):
            raise CheckFailed(
                f"{owner} gives other numbers with many clients at once than one after another ({gap}): a hook looks "
                f"at another client, or takes a mean over rows that are padding (client.total gives a weight)"
            )


def _checkpoint(trial: Trial, stage: Stage, owner: str) -> None:
    with as_check_failure(owner, "around a checkpoint"), tempfile.TemporaryDirectory() as folder:
        simulation, file = trial.finished, Path(folder) / "checkpoint.safetensors"
        store(simulation, file)
        if gap := difference(_outcome(simulation, stage), _outcome(load(trial.simulation(), file), stage)):
            raise CheckFailed(f"{owner} gives other numbers after a checkpoint than without one ({gap})")


def _flower(trial: Trial, stage: Stage, owner: str, wanted: bool) -> None:
    need_flower(wanted)
    if stage.oracle:
        raise Skipped("it needs all clients' data in one place (oracle = True)")
    from fedhead.testing.over_flower import check_over_flower

    check_over_flower(trial, [stage], owner)


def _outcome(simulation: Simulation, stage: Stage, executor: Executor | None = None) -> dict[str, Tensor]:
    """What a stage leaves behind, its accuracies among it."""
    result: StageResult = run_stage(simulation.using(executor or Loop()), stage)
    found = {f"the server's state: {name}": t for name, t in result.server.leaves().items()}
    for k in simulation.holders:
        found |= {f"client {k}'s state: {name}": t for name, t in result.states[k].leaves().items()}
    numbers = {"accuracy": result.accuracy, "personal accuracy": result.personal}
    return found | {name: torch.tensor(float(value or 0.0)) for name, value in numbers.items()}
