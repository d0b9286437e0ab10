"""Contract checks of methods and stages."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import METHODS, Method
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.core.components.component_check import check_class
from fedhead.core.components.parameters import Checked, check_fields
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.padding_check import PaddingCheck
from fedhead.engine.rounds.rounds import evaluate, run_stage
from fedhead.executors.client import hook_check
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.testing.checks import Check, Skipped, as_check_failure, require, run_checks
from fedhead.testing.small import small_model, small_perceptron
from fedhead.testing.trial import LOCAL, PlainLoop, Trial, difference, final_tensors

A = TypeVar("A", bound=Algorithm)


def check_method(
    method: Method | type[Method], *, local: LocalTraining = LOCAL, skip: Sequence[str] = ()
) -> list[Check]:
    """Check that a method fulfils the contract of methods.

    It is trained on a small federation (uneven clients, one empty, partial participation): sequentially, stacked, over
    Flower's messages and across a checkpoint. All must give the same numbers. Hooks must be pure, and losses must
    ignore padding rows.

    Args:
        method: The class, or an instance with the options to be checked.
        local: Local training, for a method with special requirements.
        skip: Names of checks to leave out: "options", "hooks", "padding", "executors", "architectures", "sums",
            "checkpoint", "over_flower".

    Returns:
        The checks, with the reason for each that was skipped.

    Raises:
        CheckFailed: If a check fails, with the problem and the fix in one line.
    """
    component = _instance(method, Method)
    trial = Trial(component, [small_model("group", component.head)], local)
    return run_checks(trial.owner, trial, METHOD_CHECKS, skip)


def check_stage(
    stage: Stage | type[Stage],
    method: Method | None = None,
    *,
    local: LocalTraining = LOCAL,
    skip: Sequence[str] = (),
) -> list[Check]:
    """Check that a stage fulfils the contract of stages.

    It follows two rounds of a small federation: sequentially, stacked, over Flower's messages and after a checkpoint.
    All must give the same numbers. Hooks must be pure, losses must ignore padding rows, and the trained run must not
    change.

    Args:
        stage: The class, or an instance with the options to be checked.
        method: Method that it follows; None: FedAvg, or the built-in method with the stage's required head.
        local: Local training.
        skip: Names of checks to leave out: "options", "hooks", "padding", "executors", "checkpoint", "over_flower".

    Returns:
        The checks, with the reason for each that was skipped.

    Raises:
        CheckFailed: If a check fails, with the problem and the fix in one line.
    """
    component = _instance(stage, Stage)
    if method is None:
        matching = (cls for cls in METHODS.values() if cls.head == component.head)
        method = METHODS["fedavg"]() if component.head is None else next(matching, METHODS["fedavg"])()
    trial = Trial(method, [small_model("batch", method.head)], local, rounds=2, stage=component)
    with as_check_failure(trial.owner, f"after {method.name or type(method).__name__}"):
        component.on_method(method)
    return run_checks(trial.owner, trial, STAGE_CHECKS, skip)


def _instance(component: A | type[A], base: type[A]) -> A:
    """Return a component, built with its defaults if a class is given.

    Raises:
        CheckFailed: If the registry would refuse it: another kind, no dataclass, or a hook with a wrong signature.
    """
    require(not isinstance(component, str), f"{component!r} is a name: give a subclass of fedhead.{base.__name__}")
    cls = component if isinstance(component, type) else type(component)
    with as_check_failure(cls.__name__, "while it was made"):
        check_class(cls, cls.__name__, base, defaults=isinstance(component, type))
        return component if isinstance(component, base) else cls()


def check_options(trial: Trial) -> None:
    """Check that the component can be rebuilt from its options, and that its base class validates them."""
    component, owner = trial.stage or trial.method, trial.owner
    check_fields(component, f"{owner}: ")  # even if it overrides __post_init__
    with patch.object(Checked, "__post_init__") as base_check:
        again = dataclasses.replace(component)
    require(again == component, f"{owner} made again with the same options is another one")
    require(
        base_check.called,
        f"{owner}.__post_init__ leaves the declared types and ranges unchecked: call super().__post_init__() first",
    )


def check_hooks(trial: Trial) -> None:
    """Check that hooks are pure, return named tensors, and leave the trained run unchanged."""
    before = final_tensors(trial.trained)
    with patch.object(hook_check, "is_built_in", return_value=False):  # runs check only users' components
        if trial.stage is None:
            simulation = trial.train(PlainLoop(trial.owner))
            evaluate(simulation, simulation.context(trial.rounds), {})
        else:
            run_stage(trial.trained.using(PlainLoop(trial.owner)), trial.stage)
    gap = difference(before, final_tensors(trial.trained))
    require(not gap, f"{trial.owner} changes the trained run ({gap}): return new trees, with .replace(...)")


def check_padding(trial: Trial) -> None:
    """Check that losses do not depend on padding rows, in a trained state, where losses may have more terms."""
    simulation, round = trial.trained, trial.rounds + (trial.stage is not None)
    jobs = simulation.jobs(trial.algorithm, simulation.server, simulation.states, simulation.clients.holders, round)
    for group, job in enumerate(jobs):
        PaddingCheck()(job, group)


def check_executors(trial: Trial) -> None:
    """Check that stacked clients give the same numbers as sequential ones."""
    _check_same(trial, Stack())
    if trial.stage is None:
        _check_same(trial, Stack(size=2))
        _check_same(dataclasses.replace(trial, models=[small_model("batch", trial.method.head)]), Stack())


def _check_same(trial: Trial, stack: Stack) -> None:
    gap = difference(trial.outcome(Loop()), trial.outcome(stack), 1e-10)
    require(
        not gap,
        f"{trial.owner} gives other numbers with many clients at once than one after another ({gap}): a hook looks at "
        "another client, or takes a mean over rows that are padding (client.total gives a weight)",
    )


def check_architectures(trial: Trial) -> None:
    """Check the executors with two architectures, if the method can train them together."""
    head = trial.method.head
    several = dataclasses.replace(trial, models=[small_model("batch", head), small_perceptron(head=head)])
    try:
        several.simulation()
    except BadInput as error:
        raise Skipped(str(error)) from None
    _check_same(several, Stack())


def check_sums(trial: Trial) -> None:
    """Check that the server uses only the sums of entries declared as sums."""
    names, owner = trial.method.sums, trial.owner
    if not names:
        raise Skipped("it declares no sums")
    simulation = trial.train(Loop(), 1)
    cohort, method = simulation.clients.holders, simulation.experiment.method
    job = simulation.jobs(method, simulation.server, simulation.states, cohort, 2)[0]
    sent = [reply.send for reply in Loop().train(job)]
    for name in names:
        require(name in sent[0], f"{owner}.sums names {name!r}, which finish does not send; it sends {list(sent[0])}")
    samples = [float(len(simulation.clients.federation.indices[k])) for k in cohort]
    expected, other = (
        method.aggregate(simulation.server, Replies(cohort, samples, each), simulation.task).leaves()
        for each in (sent, _sum_up_in_first(sent, names))
    )
    gap = difference(expected, other, 1e-8)
    require(
        not gap,
        f"{owner}.aggregate looks at single clients' entries of {', '.join(names)}, declared as plain sums ({gap}): "
        f"use replies.sum(...) alone, or take them out of {owner}.sums",
    )


def _sum_up_in_first(sent: list[Tree], names: tuple[str, ...]) -> list[Tree]:
    """Return replies in which the first client sends the sums and the others send zeros."""

    def total(name: str) -> Tree | Tensor:
        entries = [tree[name] for tree in sent]
        return sum(entries[1:], entries[0])  # type: ignore[no-any-return]  # a tree's entries are untyped

    first = sent[0].replace({name: total(name) for name in names})
    return [first, *(tree.replace({name: 0 * tree[name] for name in names}) for tree in sent[1:])]


def check_checkpoint(trial: Trial) -> None:
    """Check that a run continued from a checkpoint gives the numbers of an uninterrupted one."""
    with tempfile.TemporaryDirectory() as folder:
        gap = difference(trial.outcome(Loop()), trial.outcome_after_checkpoint(Path(folder) / "checkpoint.safetensors"))
    require(
        not gap,
        f"{trial.owner} does not go on from a checkpoint as it would have without ({gap}): what a round needs of "
        "earlier ones must be in the server's or the client's state",
    )


def check_over_flower(trial: Trial) -> None:
    """Check that a run over Flower's messages, within this process, gives the numbers of a simulation."""
    if find_spec("flwr") is None:
        raise Skipped("flwr is not installed: pip install 'fedhead[flower]'")
    if trial.stage is not None and trial.stage.oracle:
        raise Skipped("it needs all clients' data in one place (oracle = True)")
    from fedhead.testing.over_flower import compare_with_simulation

    compare_with_simulation(trial)


STAGE_CHECKS = (check_options, check_hooks, check_padding, check_executors, check_checkpoint, check_over_flower)
METHOD_CHECKS = (*STAGE_CHECKS[:4], check_architectures, check_sums, *STAGE_CHECKS[4:])
