"""One exchange with the clients: ask a cohort, check each reply, ask again while there is no quorum, aggregate.

A failure is an error that belongs to one client: no reply in time, a reply of other shapes than asked for, numbers
that are not finite. It never enters an aggregate. A transport with a `Quorum` goes on without that client and names
it in the record; without one, as in simulations, the failure ends the run. Numbers of the right form that no client
could have computed (`Algorithm.check_reply`) leave out that client everywhere, and so do replies that stand out from
the others if the run's policy is to drop them (`fedhead.engine.outliers`).

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
from fedhead.core.errors import BadInput, Diverged, FedheadError
from fedhead.core.finite import all_finite
from fedhead.core.schema import Schema, schema
from fedhead.core.tree import Tree, Weights
from fedhead.engine import outliers, reply_check
from fedhead.engine.evaluation import mean, weighted_mean
from fedhead.engine.metrics import Row
from fedhead.engine.outliers import Outlier
from fedhead.engine.sampling import Cohort
from fedhead.engine.server import aggregate
from fedhead.engine.transport import AnyTransport, ClientReply, Quorum, Received
from fedhead.executors.malloc import hand_back_memory


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
    rule = transport.clients.aggregator if isinstance(algorithm, Method) else None  # stages have their own rules
    fewest = 1 if rule is None else rule.fewest()
    where = f"stage {algorithm.name}" if isinstance(algorithm, Stage) else f"round {round}"
    total = Tree() if _adds_up(transport, algorithm) else None
    counted: dict[int, ClientReply] = {}
    failed: dict[int, FedheadError] = {}
    down, inclusion = 0, dict[int, float]()
    for attempt in range(1, quorum.attempts + 1):
        present = transport.present()
        cohort = select(present)
        inclusion |= cohort.inclusion
        asked = [k for k in cohort.clients if k not in counted]
        if len({*asked, *counted}) < (fewest if cohort.dropped else 1):  # asking again would change nothing
            return server, _skipped(transport, where, cohort)
        ask = functools.partial(_ask, transport, algorithm, server, states, round=round)
        fresh, faults, received, total = ask(asked, total)
        down += received
        unlike = _unlike_others(transport, algorithm, counted | fresh)
        if unlike and total is not None:  # nothing can be taken out of a sum again: add up the others anew
            fresh, more, received, total = ask([k for k in (counted | fresh) if k not in unlike], Tree())
            counted, faults, down = {}, faults | more, down + received
        faults |= unlike
        passed = {k: reply for k, reply in (counted | fresh).items() if k not in faults}
        counted, odd, clipped = _without_outliers(transport, algorithm, server, passed)
        faults |= odd
        failed = {k: why for k, why in failed.items() if k not in asked} | faults
        for k, why in faults.items():
            if transport.quorum is None and not isinstance(why, reply_check.Impossible):
                raise why
            transport.log(f"{where}: {transport.client_name(k)} does not count: {why}")
        if len(counted) >= max(min(quorum.replies, len({*cohort.clients, *counted})), fewest):
            mean = functools.partial(transport.mean, round=round)
            new = _aggregate(transport, algorithm, server, counted, total, clipped, rule, inclusion, mean)
            if not transport.finite(new, round):
                reply_check.check_finite(new, f"{where}, the server")
            for k in sorted(counted):
                states[k] = counted[k].kept
            missing = {**transport.why_absent(present), **cohort.dropped}
            absent = {k: why for k, why in missing.items() if k not in counted and k not in failed}
            return new, _record(transport, counted, failed, absent, clipped, down)
        transport.log(f"{where}, attempt {attempt}: only {len(counted)} replies that count")
    reasons = "; ".join(f"{transport.client_name(k)}: {why}" for k, why in sorted(failed.items()))
    raise FedheadError(
        f"{where} has no quorum: {len(counted)} of {max(quorum.replies, fewest)} replies after "
        f"{quorum.attempts} attempts ({reasons}); fix the sites, then resume"
    )


def _adds_up(transport: AnyTransport, algorithm: Algorithm) -> bool:
    """Whether replies are added up as they arrive: nothing is to be found out about single ones later."""
    clients = transport.clients
    return algorithm.adds_up and clients.outliers is None and upload.exact(clients.uploads, algorithm, algorithm.sums)


def _ask(
    transport: AnyTransport,
    algorithm: Algorithm,
    server: Tree,
    states: Any,
    asked: list[int],
    total: Tree | None,
    *,
    round: int,
) -> tuple[dict[int, ClientReply], dict[int, FedheadError], int, Tree | None]:
    """Ask clients, and check their replies; with a total, add them to it portion by portion.

    Returns:
        The replies that are as expected (of those that were added, a digest), why the others are not, the bytes that
        the clients received, and the new total.
    """
    size = max(len(asked), 1) if total is None or transport.portion is None else transport.portion
    passed: dict[int, ClientReply] = {}
    failed: dict[int, FedheadError] = {}
    down, first = 0, None
    for begin in range(0, len(asked), size):
        received = transport.exchange(algorithm, server, states, asked[begin : begin + size], round)
        down += received.bytes_down
        found, faults, first = _check_replies(transport, algorithm, server, received, round, first)
        del received  # before the next portion is made
        if total is not None:
            for k in sorted(found):
                total, found[k] = _added(transport, algorithm, total, k, found[k])
            if len(asked) > size:
                hand_back_memory()
        passed |= found
        failed |= faults
    return passed, failed, down, total


def _added(
    transport: AnyTransport, algorithm: Algorithm, total: Tree, client: int, reply: ClientReply
) -> tuple[Tree, ClientReply]:
    """Return the total with a reply, and what is kept of the reply."""
    sent = _decoded(transport, algorithm, {client: reply})[client]
    return algorithm.add(total, sent), reply._replace(send=algorithm.digest(sent), added_bytes=reply.nbytes)


def _check_replies(
    transport: AnyTransport,
    algorithm: Algorithm,
    server: Tree,
    received: Received,
    round: int,
    first: Schema | None = None,
) -> tuple[dict[int, ClientReply], dict[int, FedheadError], Schema | None]:
    """Return the replies that are as expected, why the others are not, and what the first one looked like."""
    passed: dict[int, ClientReply] = {}
    failed = dict(received.failures)
    finite = received.finite or all_finite(tree for reply in received.replies.values() for tree in _seen(reply))
    for k in sorted(received.replies):
        reply = received.replies[k]
        known = transport.schema(algorithm, server, k)
        try:
            reply_check.check_form(reply.send, first if known is None else known, k, round)
            if not finite:  # of some client
                for tree in _seen(reply):
                    reply_check.check_finite(tree, f"client {k}, round {round}")
            _check_possible(transport, algorithm, k, reply)
        except Diverged as error:
            drops = transport.clients.outliers is not None and transport.clients.outliers.action == "drop"
            failed[k] = reply_check.Impossible(str(error)) if drops else error
            continue
        except FedheadError as error:
            failed[k] = error
            continue
        first = schema(reply.send) if first is None else first
        passed[k] = reply
    return passed, failed, first


def _seen(reply: ClientReply) -> list[Tree]:
    """What can be checked of a reply: a site checks by itself what it keeps."""
    return [reply.send, *([reply.kept] if isinstance(reply.kept, Tree) else [])]


def _check_possible(transport: AnyTransport, algorithm: Algorithm, client: int, reply: ClientReply) -> None:
    """Raise `Impossible` for numbers that no client could have computed, where uploads let them be seen."""
    clients = transport.clients
    if not upload.exact(clients.uploads, algorithm, algorithm.class_rows):
        return
    task = clients.task_of(client)
    try:
        algorithm.check_reply(upload.decode(clients.uploads, algorithm, reply.send, task), reply.samples, task)
    except BadInput as error:
        raise reply_check.Impossible(f"client {client}: {error}") from error


def _unlike_others(
    transport: AnyTransport, algorithm: Algorithm, replies: dict[int, ClientReply]
) -> dict[int, FedheadError]:
    """Return why replies can't be aggregated with the others, where uploads let them be seen."""
    if not algorithm.class_rows or not upload.exact(transport.clients.uploads, algorithm, algorithm.class_rows):
        return {}
    whole = {k: reply for k, reply in replies.items() if reply.added_bytes is None}
    digests = {k: algorithm.digest(sent) for k, sent in _decoded(transport, algorithm, whole).items()}
    digests |= {k: reply.send for k, reply in replies.items() if k not in whole}
    found = algorithm.unlike_others(digests)
    return {k: reply_check.Impossible(f"client {k}: {why}") for k, why in found.items()}


def _without_outliers(
    transport: AnyTransport, algorithm: Algorithm, server: Tree, replies: dict[int, ClientReply]
) -> tuple[dict[int, ClientReply], dict[int, FedheadError], dict[int, Outlier]]:
    """Return the replies that count, why those that stand out don't, and those that are scaled down instead."""
    policy = transport.clients.outliers
    if policy is None or not replies:
        return replies, {}, {}
    samples = {k: reply.samples for k, reply in replies.items()}
    found = outliers.find(policy, algorithm, server, _decoded(transport, algorithm, replies), samples)
    if policy.action == "clip":
        return replies, {}, found
    kind = reply_check.Refused if policy.action == "reject" else reply_check.Impossible
    odd: dict[int, FedheadError] = {k: kind(f"client {k}: {outlier.why}") for k, outlier in found.items()}
    return {k: reply for k, reply in replies.items() if k not in odd}, odd, {}


def _decoded(transport: AnyTransport, algorithm: Algorithm, replies: dict[int, ClientReply]) -> dict[int, Tree]:
    clients = transport.clients
    return {k: upload.decode(clients.uploads, algorithm, r.send, clients.task_of(k)) for k, r in replies.items()}


def _aggregate(
    transport: AnyTransport,
    algorithm: Algorithm,
    server: Tree,
    replies: dict[int, ClientReply],
    total: Tree | None,
    clipped: dict[int, Outlier],
    rule: Aggregator | None,
    inclusion: Mapping[int, float],
    mean: Callable[[list[Tree], list[float]], Tree],
) -> Tree:
    task = transport.clients.task
    if total is not None:
        order = sorted(replies)
        added = Replies(order, [replies[k].samples for k in order], [], total)
        return _with_frozen(server, algorithm.aggregate(server, added, task), task.model.frozen)
    sent = _decoded(transport, algorithm, replies) | {k: outlier.sent for k, outlier in clipped.items()}
    samples = {k: r.samples for k, r in replies.items()} | {k: outlier.samples for k, outlier in clipped.items()}
    samples = {k: count / inclusion[k] if k in inclusion else count for k, count in samples.items()}
    return _with_frozen(server, aggregate(algorithm, server, sent, samples, task, rule, mean), task.model.frozen)


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
    replies: dict[int, ClientReply],
    failed: dict[int, FedheadError],
    absent: dict[int, str],
    clipped: dict[int, Outlier],
    down: int,
) -> Row:
    up = sum(reply.nbytes for reply in replies.values())
    record: Row = {"bytes_up": up, "bytes_down": down, "participants": len(replies)} | _train_losses(transport, replies)
    if failed:
        record["failed"] = {transport.client_name(k): str(why) for k, why in failed.items()}
    if absent:
        record["absent"] = {transport.client_name(k): why for k, why in absent.items()}
    if clipped:
        record["clipped"] = {transport.client_name(k): outlier.why for k, outlier in clipped.items()}
    left_out = {transport.client_name(k): list(reply.left_out) for k, reply in replies.items() if reply.left_out}
    if left_out:
        record["left_out"] = left_out
    return record


def _train_losses(transport: AnyTransport, replies: dict[int, ClientReply]) -> Row:
    """Return the losses of local training, of each client and their means; nothing where no client has trained."""
    there = {k: reply for k, reply in sorted(replies.items()) if reply.train_loss is not None}
    if not there:
        return {}
    # on a GPU this waits once for all clients; a client without a single step has no loss, which is NaN here
    values = torch.stack([reply.train_loss for reply in there.values() if reply.train_loss is not None]).tolist()
    each = [value if math.isfinite(value) else None for value in values]
    return {
        "train_loss": weighted_mean(each, [reply.samples for reply in there.values()]),
        "train_loss_unweighted": mean(each),
        "client_train_loss": {transport.client_name(k): value for k, value in zip(there, each, strict=True)},
    }
