"""The check of a method: that it keeps what every executor, transport and checkpoint relies on."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from torch import Tensor

from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.rounds import evaluate
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.testing.components import check_options, instance
from fedhead.testing.failure import Check, CheckFailed, Skipped, as_check_failure, need_flower, run_checks
from fedhead.testing.purity import check_tree, watched
from fedhead.testing.small import small_model, small_perceptron
from fedhead.testing.trial import LOCAL, PlainLoop, Trial, check_padding, difference, final_tensors


def check_method(method: Method | type[Method], *, local: LocalTraining = LOCAL, flower: bool = True) -> list[Check]:
    """Check that a method keeps what fedhead relies on.

    It is trained on a small federation (uneven clients, an empty one, a part of them in each round) one client after
    another, many at once, over Flower's messages and across a checkpoint, which must all give the same numbers. Its
    hooks must be pure and its losses blind to padding rows.

    Args:
        method: The class, or an instance with the options to be checked.
        local: How clients train, for a method that asks for something special.
        flower: Whether to run it over an in-process Flower grid too, where flwr is installed.

    Returns:
        The checks that were made, with the reason for each that was skipped.

    Raises:
        CheckFailed: In one line, what is wrong and how to fix it.
    """
    made = instance(method, Method)
    owner = type(made).__name__
    models = [small_model("group", made.head)]
    trial = Trial(made, models, local)
    checks = {
        "options": lambda: check_options(made),
        "hooks": lambda: _hooks(trial, owner),
        "padding": lambda: _padding(trial, owner),
        "executors": lambda: _executors(trial, owner),
        "architectures": lambda: _architectures(trial, owner),
        "sums": lambda: _sums(trial, owner),
        "checkpoint": lambda: _checkpoint(trial, owner),
        "flower": lambda: _flower(trial, owner, flower),
    }
    return run_checks(checks)


def _padding(trial: Trial, owner: str) -> None:
    with as_check_failure(owner, "on a batch with padding"):
        finished = trial.finished  # the engine checks by itself before the first round …
        check_padding(finished, trial.method, trial.rounds)  # … and a trained state may have more terms in its loss


def _hooks(trial: Trial, owner: str) -> None:
    with as_check_failure(owner, "one client after another"):
        simulation = dataclasses.replace(trial, method=watched(trial.method)).run(PlainLoop(owner))
        check_tree(f"{owner}.init_server makes", simulation.server)
        evaluate(simulation, simulation.method, simulation.server, simulation.states, trial.rounds)


def _executors(trial: Trial, owner: str) -> None:
    _same(trial, owner, Stack(), Stack(size=2))
    _same(dataclasses.replace(trial, models=[small_model("batch", trial.method.head)]), owner, Stack())


def _same(trial: Trial, owner: str, *stacks: Stack) -> None:
    """One client after another gives the numbers that stacks of clients give."""
    with as_check_failure(owner, "one client after another"):
        expected = final_tensors(trial.finished)
    with as_check_failure(owner, "with many clients at once"):
        for executor in stacks:
            if gap := difference(expected, final_tensors(trial.run(executor)), 1e-10):
                raise CheckFailed(
                    f"{owner} gives other numbers with many clients at once than one after another ({gap}): a hook "
                    f"looks at another client, or takes a mean over rows that are padding (client.total gives a weight)"
                )


def _architectures(trial: Trial, owner: str) -> None:
    head = trial.method.head
    several = dataclasses.replace(trial, models=[small_model("batch", head), small_perceptron(head=head)])
    try:
        several.simulation()
    except BadInput as error:
        raise Skipped(str(error)) from None
    _same(several, owner, Stack())


def _sums(trial: Trial, owner: str) -> None:
    names = trial.method.sums
    if not names:
        raise Skipped("it declares no sums")
    with as_check_failure(owner, "while its sums were put together"):
        simulation = trial.run(Loop(), 1)
        cohort = simulation.holders
        job = simulation.jobs(simulation.method, simulation.server, simulation.states, cohort, 2)[0]
        sent = [reply.send for reply in Loop().run(job)]
        for name in names:
            if name not in sent[0]:
                raise CheckFailed(f"{owner}.sums names {name!r}, which finish does not send; it sends {list(sent[0])}")
        samples = [float(len(simulation.federation.rows[k])) for k in cohort]
        one, other = (
            simulation.method.aggregate(simulation.server, Replies(cohort, samples, each), simulation.task).leaves()
            for each in (sent, _spread(sent, names))
        )
        if gap := difference(one, other, 1e-8):
            raise CheckFailed(
                f"{owner}.aggregate looks at single clients' entries of {', '.join(names)}, declared as plain sums "
                f"({gap}): use replies.sum(...) alone, or take them out of {owner}.sums"
            )


def _spread(sent: list[Tree], names: tuple[str, ...]) -> list[Tree]:
    """Replies with the same sums, all of which the first client sends."""

    def total(name: str) -> Tree | Tensor:
        entries = [tree[name] for tree in sent]
        return sum(entries[1:], entries[0])  # type: ignore[no-any-return]  # a tree's entries are untyped

    first = sent[0].replace({name: total(name) for name in names})
    return [first, *(tree.replace({name: 0 * tree[name] for name in names}) for tree in sent[1:])]


def _checkpoint(trial: Trial, owner: str) -> None:
    with as_check_failure(owner, "around a checkpoint"), tempfile.TemporaryDirectory() as folder:
        if gap := difference(final_tensors(trial.finished), final_tensors(trial.after_checkpoint(Path(folder)))):
            raise CheckFailed(
                f"{owner} does not go on from a checkpoint as it would have without ({gap}): what a round needs of "
                f"earlier ones must be in the server's or the client's state"
            )


def _flower(trial: Trial, owner: str, wanted: bool) -> None:
    need_flower(wanted)
    from fedhead.testing.over_flower import check_over_flower

    check_over_flower(trial, [], owner)
