"""One exchange with the clients: ask a cohort, check each reply, ask again while there is no quorum, aggregate.

A failure is an error that belongs to one client: no reply in time, a reply of other shapes than asked for, numbers
that are not finite. It never enters an aggregate that is kept. A transport with a `Quorum` goes on without that
client and names it in the record; without one, as in simulations, the failure ends the run. Numbers of the right form
that no client could have computed (`Algorithm.check_reply`) leave out that client everywhere, and so do replies that
stand out from the others if the run's policy is to drop them (`fedhead.engine.policies.outliers`).

Where an algorithm needs only sums over clients (`Stage.adds_up`), a portion of the clients is asked at a time and
each reply is added to a total as soon as it is checked, so that memory does not grow with the number of clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

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
from fedhead.core.tree.tree_rows import TreeRows
from fedhead.engine.clients.evaluation import nanmean
from fedhead.engine.clients.server import aggregate
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
from fedhead.engine.rounds.transport import Context, Quorum, Transport
from fedhead.executors.client.reply_set import ClientReply, ReplySet
from fedhead.metrics.records import Row


def exchange(transport: Transport, context: Context, select: Callable[[list[int]], Cohort]) -> tuple[Tree, Row]:
    """Send the server's state to a cohort, check the replies and aggregate them.

    The clients' states are written last, so that a failure leaves no trace.

    Args:
        transport: The way to the clients.
        context: The algorithm, the round and the states; those of clients whose reply counts are replaced.
        select: Chooses the cohort among the clients that are present; where it is empty, the state stays as it is.

    Returns:
        The server's new state, and the record of the exchange.

    Raises:
        FedheadError: If there is no quorum, or, without one, as soon as a client fails.
        Diverged: If the server's new state is not finite.
    """
    algorithm, server, round = context.algorithm, context.server, context.round
    quorum = transport.quorum or Quorum()
    rule = transport.experiment.aggregator if isinstance(algorithm, Method) else None  # stages have their own rules
    fewest = 1 if rule is None else rule.min_clients()
    where = f"stage {algorithm.name}" if isinstance(algorithm, Stage) else f"round {round}"
    total = Tree() if _adds_up(transport, algorithm) else None
    counted = ReplySet.of({})
    failed: dict[int, FedheadError] = {}
    down, inclusion = 0, dict[int, float]()
    for attempt in range(1, quorum.attempts + 1):
        present = transport.present()
        cohort = select(present)
        inclusion |= cohort.inclusion
        asked = [k for k in cohort.clients if k not in counted]
        taking_part = {*asked, *counted}
        # Late clients are dropped again if they are asked again. Where nobody is late, too few replies are an error.
        if not taking_part or (cohort.dropped and len(taking_part) < fewest):
            return server, _skip(transport, where, len(taking_part), cohort.dropped)
        fresh, faults, received, total = request_replies(transport, context, asked, total)
        down += received
        unlike = find_inconsistent_replies(transport, algorithm, _merged(counted, fresh))
        if unlike and total is not None:  # nothing can be taken out of a sum again: add up the others anew
            others = [k for k in (*counted, *fresh) if k not in unlike]
            fresh, more, received, total = request_replies(transport, context, others, Tree())
            counted, faults, down = ReplySet.of({}), faults | more, down + received
        faults |= unlike
        passed = _merged(counted, fresh).without(faults)
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
            context.states.keep(list(counted), counted.kept)
            missing = {**transport.why_absent(present), **cohort.dropped}
            absent = {k: why for k, why in missing.items() if k not in counted and k not in failed}
            return new, _record(transport, counted, failed, absent, clipped, down)
        transport.log(f"{where}, attempt {attempt}: only {len(counted)} replies that count")
    reasons = "; ".join(f"{transport.client_name(k)}: {why}" for k, why in sorted(failed.items()))
    raise FedheadError(
        f"{where} has no quorum: {len(counted)} of {max(quorum.replies, fewest)} replies after "
        f"{quorum.attempts} attempts ({reasons}); fix the sites, then resume"
    )


def _merged(counted: ReplySet, fresh: ReplySet) -> ReplySet:
    """Return all replies so far; those of one stack stay one."""
    return ReplySet.of({**counted, **fresh}) if counted else fresh


def _adds_up(transport: Transport, algorithm: Algorithm) -> bool:
    """Return whether replies are added up as they arrive: nothing is to be found out about single ones later."""
    experiment = transport.experiment
    exact = upload.exact(experiment.uploads, algorithm, algorithm.sums)
    return isinstance(algorithm, Stage) and algorithm.adds_up and experiment.outliers is None and exact


def request_replies(
    transport: Transport, context: Context, asked: list[int], total: Tree | None
) -> tuple[ReplySet, dict[int, FedheadError], int, Tree | None]:
    """Ask clients, and check their replies; with a total, add them to it portion by portion.

    Returns:
        The replies that are as expected (of those that were added, a digest), why the others are not, the bytes that
        the clients received, and the new total.
    """
    size = max(len(asked), 1) if total is None or transport.portion is None else transport.portion
    passed = ReplySet.of({})
    failed: dict[int, FedheadError] = {}
    down, first = 0, None
    for begin in range(0, len(asked), size):
        received = transport.exchange(context, asked[begin : begin + size])
        down += received.bytes_down
        found, faults, first = check_replies(transport, context, received, first)
        del received  # before the next portion is made
        if total is not None:
            total, found = _added(transport, context.algorithm, total, found)
            if len(asked) > size:
                hand_back_memory()
        passed = _merged(passed, found)
        failed |= faults
    return passed, failed, down, total


def _added(transport: Transport, algorithm: Algorithm, total: Tree, replies: ReplySet) -> tuple[Tree, ReplySet]:
    """Return the total with some replies, and a digest of each of these."""
    assert isinstance(algorithm, Stage), "methods don't add up"
    digests: dict[int, ClientReply] = {}
    for k, reply in replies.items():
        sent = decoded(transport, algorithm, {k: reply})[k]
        total = algorithm.add(total, sent)
        digests[k] = reply._replace(send=algorithm.summary_for_comparison(sent), added_bytes=reply.nbytes)
    return total, ReplySet.of(digests)


def _aggregate(
    transport: Transport,
    algorithm: Algorithm,
    server: Tree,
    replies: ReplySet,
    total: Tree | None,
    clipped: dict[int, Outlier],
    rule: Aggregator | None,
    inclusion: Mapping[int, float],
) -> Tree:
    task = transport.clients.task
    if total is not None:
        added = Replies(list(replies), replies.samples, [], total)
        return _with_frozen(server, aggregate(algorithm, server, added, task), task.model.frozen)
    sent, samples = replies.sent, dict(zip(replies, replies.samples, strict=True))
    if clipped or transport.experiment.uploads:
        trees = decoded(transport, algorithm, replies) | {k: outlier.sent for k, outlier in clipped.items()}
        sent = TreeRows([trees[k] for k in replies])
    samples |= {k: outlier.samples for k, outlier in clipped.items()}
    weights = [count / inclusion[k] if k in inclusion else count for k, count in samples.items()]
    new = aggregate(algorithm, server, Replies(list(replies), weights, sent), task, rule)
    return _with_frozen(server, new, task.model.frozen)


def _with_frozen(old: Tree, new: Tree, names: frozenset[str]) -> Tree:
    """The server's new state with the frozen weights of the old one, whatever a method's rule makes of them."""
    model = old.get("model")
    if not names or not isinstance(model, Weights) or not isinstance(new.get("model"), Weights):
        return new
    return new.replace(model=new["model"].replace({name: t for name, t in model.items() if name in names}))


def _skip(transport: Transport, where: str, clients: int, dropped: Mapping[int, str]) -> Row:
    """Return the record of a round that is left out, since no client takes part or too few are in time."""
    reason = f"only {clients} clients are not late" if clients else "no client takes part"
    reason += ", the model stays as it is"
    transport.log(f"{where}: {reason}")
    return _record(transport, ReplySet.of({}), {}, dict(dropped), {}, 0) | {"skipped": reason}


def _record(
    transport: Transport,
    replies: ReplySet,
    failed: dict[int, FedheadError],
    absent: dict[int, str],
    clipped: dict[int, Outlier],
    down: int,
) -> Row:
    record: Row = {"bytes_up": replies.nbytes, "bytes_down": down, "participants": len(replies)}
    record |= _train_losses(transport, replies)
    if failed:
        record["failed"] = {transport.client_name(k): str(why) for k, why in failed.items()}
    if absent:
        record["absent"] = {transport.client_name(k): why for k, why in absent.items()}
    if clipped:
        record["clipped"] = {transport.client_name(k): outlier.why for k, outlier in clipped.items()}
    if replies.left_out:
        record["left_out"] = {transport.client_name(k): list(few) for k, few in replies.left_out.items()}
    return record


def _train_losses(transport: Transport, replies: ReplySet) -> Row:
    """Return the losses of local training, of each client and their means; nothing where no client has trained."""
    # a client without a single step has no loss, which is NaN here
    losses = {k: value if math.isfinite(value) else None for k, value in replies.losses().items()}
    if not losses:
        return {}
    samples = [count for k, count in zip(replies, replies.samples, strict=True) if k in losses]
    return {
        "train_loss": nanmean(list(losses.values()), samples),
        "train_loss_unweighted": nanmean(list(losses.values())),
        "client_train_loss": {transport.client_name(k): value for k, value in losses.items()},
    }
