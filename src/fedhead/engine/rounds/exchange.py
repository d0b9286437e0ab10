"""One exchange with the clients: ask a cohort, check each reply, ask again while there is no quorum, aggregate.

A failure is an error that belongs to one client: no reply in time, a reply of other shapes than asked for, numbers
that are not finite. It never enters an aggregate that is kept. A transport with a `Quorum` goes on without that
client and names it in the record; without one, as in simulations, the failure ends the run. Numbers of the right form
that no client could have computed (`Algorithm.check_reply`) leave out that client everywhere, and so do replies that
stand out from the others if the run's policy is to drop them (`fedhead.engine.policies.outliers`).

Where an algorithm needs only sums over clients (`Algorithm.adds_up`), a portion of the clients is asked at a time and
each reply is added to a total as soon as it is checked, so that memory does not grow with the number of clients.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fedhead.aggregators.base import Aggregator
from fedhead.algorithm import upload
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import FedheadError
from fedhead.core.system.malloc import hand_back_memory
from fedhead.core.tree.finite import all_finite
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.clients.evaluation import nanmean
from fedhead.engine.clients.server import aggregate, aggregate_replies
from fedhead.engine.policies import reply_check
from fedhead.engine.policies.outliers import Outlier
from fedhead.engine.policies.sampling import Cohort
from fedhead.engine.rounds.reply_selection import (
    check_after_aggregation,
    check_replies,
    decoded,
    find_inconsistent_replies,
    without_outliers,
)
from fedhead.engine.rounds.stacked_replies import as_stack
from fedhead.engine.rounds.transport import AnyTransport, ClientReply, Quorum
from fedhead.metrics.records import Row


def exchange(
    transport: AnyTransport,
    algorithm: Algorithm,
    server: Tree,
    states: Any,
    round: int,
    select: Callable[[list[int]], Cohort],
) -> tuple[Tree, Row]:
    """Send the server's state to a cohort, check the replies and aggregate them.

    The clients' states are written last, so that a failure leaves no trace.

    Args:
        transport: The way to the clients.
        algorithm: A method or a stage.
        server: The server's state.
        states: The clients' states, of which those whose reply counts are replaced.
        round: Number of the round.
        select: Chooses the cohort among the clients that are present; where it is empty, the state stays as it is.

    Returns:
        The server's new state, and the record of the exchange.

    Raises:
        FedheadError: If there is no quorum, or, without one, as soon as a client fails.
        Diverged: If the server's new state is not finite.
    """
    quorum = transport.quorum or Quorum()
    rule = transport.experiment.aggregator if isinstance(algorithm, Method) else None  # stages have their own rules
    fewest = 1 if rule is None else rule.min_clients()
    where = f"stage {algorithm.name}" if isinstance(algorithm, Stage) else f"round {round}"
    total = Tree() if _adds_up(transport, algorithm) else None
    counted: Mapping[int, ClientReply] = {}
    failed: dict[int, FedheadError] = {}
    down, inclusion = 0, dict[int, float]()
    for attempt in range(1, quorum.attempts + 1):
        present = transport.present()
        cohort = select(present)
        inclusion |= cohort.inclusion
        asked = [k for k in cohort.clients if k not in counted]
        if len({*asked, *counted}) < (fewest if cohort.dropped else 1):  # asking again would change nothing
            return server, _skipped(transport, where, cohort)
        ask = functools.partial(request_replies, transport, algorithm, server, states, round=round)
        fresh, faults, received, total = ask(asked, total)
        down += received
        unlike = find_inconsistent_replies(transport, algorithm, _merged(counted, fresh))
        if unlike and total is not None:  # nothing can be taken out of a sum again: add up the others anew
            fresh, more, received, total = ask([k for k in (*counted, *fresh) if k not in unlike], Tree())
            counted, faults, down = {}, faults | more, down + received
        faults |= unlike
        passed = _merged(counted, fresh)
        if faults:
            passed = {k: reply for k, reply in passed.items() if k not in faults}
        counted, odd, clipped = without_outliers(transport, algorithm, server, passed)
        faults |= odd
        failed = {k: why for k, why in failed.items() if k not in asked} | faults
        for k, why in faults.items():
            if transport.quorum is None and not isinstance(why, reply_check.Impossible):
                raise why
            transport.log(f"{where}: {transport.client_name(k)} does not count: {why}")
        if len(counted) >= max(min(quorum.replies, len({*cohort.clients, *counted})), fewest):
            try:
                new = _aggregate(transport, algorithm, server, counted, total, clipped, rule, inclusion)
                finite = all_finite([new])
            except Exception:
                check_after_aggregation(counted, round)  # what a rule can't take, such as NaN, is the client's fault
                raise
            check_after_aggregation(counted, round)
            if not finite:
                reply_check.check_finite(new, f"{where}, the server")
            _keep(states, counted)
            missing = {**transport.why_absent(present), **cohort.dropped}
            absent = {k: why for k, why in missing.items() if k not in counted and k not in failed}
            return new, _record(transport, counted, failed, absent, clipped, down)
        transport.log(f"{where}, attempt {attempt}: only {len(counted)} replies that count")
    reasons = "; ".join(f"{transport.client_name(k)}: {why}" for k, why in sorted(failed.items()))
    raise FedheadError(
        f"{where} has no quorum: {len(counted)} of {max(quorum.replies, fewest)} replies after "
        f"{quorum.attempts} attempts ({reasons}); fix the sites, then resume"
    )


def _merged(counted: Mapping[int, ClientReply], fresh: Mapping[int, ClientReply]) -> Mapping[int, ClientReply]:
    """All replies so far; those of one stack stay one."""
    return {**counted, **fresh} if counted else fresh


def _keep(states: Any, counted: Mapping[int, ClientReply]) -> None:
    """Replace the states of the clients whose replies count, in the order of their numbers."""
    if (stack := as_stack(counted)) is not None:
        states.keep(list(stack), stack.kept)
        return
    for k in sorted(counted):
        states[k] = counted[k].kept


def _adds_up(transport: AnyTransport, algorithm: Algorithm) -> bool:
    """Whether replies are added up as they arrive: nothing is to be found out about single ones later."""
    experiment = transport.experiment
    exact = upload.exact(experiment.uploads, algorithm, algorithm.sums)
    return algorithm.adds_up and experiment.outliers is None and exact


def request_replies(
    transport: AnyTransport,
    algorithm: Algorithm,
    server: Tree,
    states: Any,
    asked: list[int],
    total: Tree | None,
    *,
    round: int,
) -> tuple[Mapping[int, ClientReply], dict[int, FedheadError], int, Tree | None]:
    """Ask clients, and check their replies; with a total, add them to it portion by portion.

    Returns:
        The replies that are as expected (of those that were added, a digest), why the others are not, the bytes that
        the clients received, and the new total.
    """
    size = max(len(asked), 1) if total is None or transport.portion is None else transport.portion
    passed: Mapping[int, ClientReply] = {}
    failed: dict[int, FedheadError] = {}
    down, first = 0, None
    for begin in range(0, len(asked), size):
        received = transport.exchange(algorithm, server, states, asked[begin : begin + size], round)
        down += received.bytes_down
        found, faults, first = check_replies(transport, algorithm, server, received, round, first)
        del received  # before the next portion is made
        if total is not None:
            for k in sorted(found):
                total, found[k] = _added(transport, algorithm, total, k, found[k])
            if len(asked) > size:
                hand_back_memory()
        passed = _merged(passed, found)
        failed |= faults
    return passed, failed, down, total


def _added(
    transport: AnyTransport, algorithm: Algorithm, total: Tree, client: int, reply: ClientReply
) -> tuple[Tree, ClientReply]:
    """Return the total with a reply, and what is kept of the reply."""
    sent = decoded(transport, algorithm, {client: reply})[client]
    return algorithm.add(total, sent), reply._replace(
        send=algorithm.summary_for_comparison(sent), added_bytes=reply.nbytes
    )


def _aggregate(
    transport: AnyTransport,
    algorithm: Algorithm,
    server: Tree,
    replies: Mapping[int, ClientReply],
    total: Tree | None,
    clipped: dict[int, Outlier],
    rule: Aggregator | None,
    inclusion: Mapping[int, float],
) -> Tree:
    task = transport.clients.task
    if total is not None:
        order = sorted(replies)
        added = Replies(order, [replies[k].samples for k in order], [], total)
        return _with_frozen(server, aggregate_replies(algorithm, server, added, task), task.model.frozen)
    stack = as_stack(replies)
    if stack is not None and not (clipped or inclusion or transport.experiment.uploads):
        found = Replies(list(stack), stack.samples, stack.sent)
        return _with_frozen(server, aggregate_replies(algorithm, server, found, task, rule), task.model.frozen)
    sent = decoded(transport, algorithm, replies) | {k: outlier.sent for k, outlier in clipped.items()}
    samples = {k: r.samples for k, r in replies.items()} | {k: outlier.samples for k, outlier in clipped.items()}
    samples = {k: count / inclusion[k] if k in inclusion else count for k, count in samples.items()}
    return _with_frozen(server, aggregate(algorithm, server, sent, samples, task, rule), task.model.frozen)


def _with_frozen(old: Tree, new: Tree, names: frozenset[str]) -> Tree:
    """The server's new state with the frozen weights of the old one, whatever a method's rule makes of them."""
    model = old.get("model")
    if not names or not isinstance(model, Weights) or not isinstance(new.get("model"), Weights):
        return new
    return new.replace(model=new["model"].replace({name: t for name, t in model.items() if name in names}))


def _skipped(transport: AnyTransport, where: str, cohort: Cohort) -> Row:
    """Return the record of an exchange in which no client takes part, or too few for the aggregator."""
    why = "no client takes part" if not cohort.clients else f"only {len(cohort.clients)} clients are not late"
    why += ", the model stays as it is"
    transport.log(f"{where}: {why}")
    return _record(transport, {}, {}, dict(cohort.dropped), {}, 0) | {"skipped": why}


def _record(
    transport: AnyTransport,
    replies: Mapping[int, ClientReply],
    failed: dict[int, FedheadError],
    absent: dict[int, str],
    clipped: dict[int, Outlier],
    down: int,
) -> Row:
    stack = as_stack(replies)
    up = sum(reply.nbytes for reply in replies.values()) if stack is None else stack.sent.nbytes
    record: Row = {"bytes_up": up, "bytes_down": down, "participants": len(replies)} | _train_losses(transport, replies)
    if failed:
        record["failed"] = {transport.client_name(k): str(why) for k, why in failed.items()}
    if absent:
        record["absent"] = {transport.client_name(k): why for k, why in absent.items()}
    if clipped:
        record["clipped"] = {transport.client_name(k): outlier.why for k, outlier in clipped.items()}
    each = replies.items() if stack is None else ()
    if left_out := {transport.client_name(k): list(reply.left_out) for k, reply in each if reply.left_out}:
        record["left_out"] = left_out
    return record


def _train_losses(transport: AnyTransport, replies: Mapping[int, ClientReply]) -> Row:
    """Return the losses of local training, of each client and their means; nothing where no client has trained."""
    clients, samples, values = _losses_of(replies)
    if not values:
        return {}
    # a client without a single step has no loss, which is NaN here
    each = [value if math.isfinite(value) else None for value in values]
    return {
        "train_loss": nanmean(each, samples),
        "train_loss_unweighted": nanmean(each),
        "client_train_loss": {transport.client_name(k): value for k, value in zip(clients, each, strict=True)},
    }


def _losses_of(replies: Mapping[int, ClientReply]) -> tuple[list[int], list[float], list[float]]:
    """Return the clients that have trained, their numbers of samples and losses; waits once for a GPU."""
    if (stack := as_stack(replies)) is not None:
        return list(stack), stack.samples, stack.train_losses() or []
    there = {k: reply for k, reply in sorted(replies.items()) if reply.train_loss is not None}
    losses = [reply.train_loss for reply in there.values() if reply.train_loss is not None]
    return list(there), [reply.samples for reply in there.values()], torch.stack(losses).tolist() if losses else []
