"""One exchange with the clients: query a cohort, check each reply, retry until the quorum is reached, aggregate.

A failure is an error of one client: no reply in time, unexpected shapes, or non-finite numbers. A failed reply never
enters an aggregate that is stored. A transport with a `Quorum` continues without that client and names it in the
record. Without a quorum, as in simulations, the failure ends the run. Some replies are excluded on every transport:
those with numbers that no client could have computed (`Algorithm.check_reply`), and outliers under the policy `drop`
(`fedhead.engine.policies.outliers`).

If an algorithm needs only sums over clients (`Stage.adds_up`), clients are queried in batches. Each reply is added to
a running total once it is checked, so memory does not grow with the number of clients. By a secure sum
(`fedhead.engine.rounds.secure_exchange`), the server gets the total alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedhead.algorithm import upload
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.system.malloc import hand_back_memory
from fedhead.core.tree.finite import all_finite
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import TreeRows
from fedhead.engine.clients.private_rounds import PrivateClients, PrivateMean
from fedhead.engine.clients.server import aggregate
from fedhead.engine.policies import reply_check, secure_sums
from fedhead.engine.policies.robust_mean import RobustMean
from fedhead.engine.policies.sampling import Cohort
from fedhead.engine.rounds.exchange_record import exchange_record, skip, with_frozen
from fedhead.engine.rounds.reply_selection import (
    Collected,
    check_after_aggregation,
    check_replies,
    decoded,
    find_inconsistent_replies,
    without_outliers,
)
from fedhead.engine.rounds.secure_exchange import collect_sum
from fedhead.engine.rounds.transport import Context, Quorum, Transport
from fedhead.executors.client.reply_set import ClientReply, ReplySet
from fedhead.metrics.records import Row


def exchange(transport: Transport, context: Context, select: Callable[[list[int]], Cohort]) -> tuple[Tree, Row]:
    """Send the server's state to a cohort, check the replies and aggregate them.

    Client states are written last, so a failed exchange changes nothing.

    Args:
        transport: Transport to the clients.
        context: Algorithm, round and states. The states of clients with an accepted reply are replaced.
        select: Function from the available clients to the cohort. An empty cohort leaves the server state unchanged.

    Returns:
        New server state and record of the exchange.

    Raises:
        FedheadError: If the quorum is not reached; for a transport without a quorum, if any client fails.
        Diverged: If the new server state is not finite.
    """
    algorithm, server, round = context.algorithm, context.server, context.round
    quorum = transport.quorum or Quorum()
    secure = transport.experiment.secure_exchange(algorithm, transport.clients.task)
    rule = transport.experiment.aggregator if isinstance(algorithm, Method) else None  # stages have their own rules
    private = transport.clients.privacy if isinstance(algorithm, Method) else None
    noisy = private.mean(server, round, transport.clients.task) if isinstance(private, PrivateClients) else None
    mean = noisy if rule is None else RobustMean(rule, server)
    if secure is not None:
        needed = secure.min_clients
    else:
        needed = rule.quorum() if rule is not None else 1 if noisy is None else 0
    where = f"stage {algorithm.name}" if isinstance(algorithm, Stage) else f"round {round}"
    collected = Collected(ReplySet.of({}), Tree() if _adds_up(transport, algorithm) else None, {}, 0)
    failed: dict[int, FedheadError] = {}
    down, inclusion = 0, dict[int, float]()
    for attempt in range(1, quorum.attempts + 1):
        present = transport.present()
        cohort = select(present)
        inclusion |= cohort.inclusion
        queried = [k for k in cohort.clients if k not in collected.replies]
        participants = {*queried, *collected.replies}
        # A retry would drop the same late clients again. Without late clients, too few replies are an error.
        # Differential privacy needs noise in a round without clients as well.
        if (not participants and noisy is None) or (cohort.dropped and len(participants) < needed):
            return server, skip(transport, where, len(participants), cohort.dropped)
        if secure is not None:
            collected = collect_sum(transport, context, secure, queried)
        else:
            collected = _collect(transport, context, queried, collected)
        accepted, down = collected.replies, down + collected.bytes_down
        failed = {k: why for k, why in failed.items() if k not in queried} | dict(collected.failed)
        for k, why in collected.failed.items():
            if transport.quorum is None and not isinstance(why, reply_check.Impossible):
                raise why
            transport.log(f"{where}: {transport.client_name(k)} does not count: {why}")
        if len(accepted) >= max(min(quorum.replies, len({*cohort.clients, *accepted})), needed):
            try:
                new = _aggregate(transport, context, collected, mean, inclusion)
                finite = all_finite([new])
            except Exception:
                check_after_aggregation(accepted, round)  # blame the client if its NaN made the aggregation fail
                raise
            check_after_aggregation(accepted, round)
            if not finite:
                reply_check.check_finite(new, f"{where}, the server")
            context.states.keep(list(accepted), accepted.kept)
            missing = {**transport.why_absent(present), **cohort.dropped}
            absent = {k: why for k, why in missing.items() if k not in accepted and k not in failed}
            record = exchange_record(transport, accepted, failed, absent, collected.clipped, down)
            return new, record if secure is None else record | {"secure_sum": True}
        reason = f": {collected.reason}" if collected.reason else ""
        transport.log(f"{where}, attempt {attempt}: only {len(accepted)} replies that count{reason}")
    reasons = "; ".join(f"{transport.client_name(k)}: {why}" for k, why in sorted(failed.items()))
    raise FedheadError(
        f"{where} has no quorum: {len(accepted)} of {max(quorum.replies, needed)} replies after "
        f"{quorum.attempts} attempts{reason} ({reasons}); fix the sites, then resume"
    )


def _collect(transport: Transport, context: Context, clients: list[int], earlier: Collected) -> Collected:
    """Query clients, check their replies and merge them with those of earlier attempts."""
    algorithm, accepted = context.algorithm, earlier.replies
    replies, failed, down, total = request_replies(transport, context, clients, earlier.total)
    if secure_sums.find(transport.experiment.uploads) is not None and any(r.send for r in replies.values()):
        raise BadInput(f"secure_sum: {algorithm.name} sends replies openly, as it has no aggregate: send nothing")
    inconsistent = find_inconsistent_replies(transport, algorithm, _merged(accepted, replies))
    if inconsistent and total is not None:  # replies can't be removed from a sum: recompute it
        others = [k for k in (*accepted, *replies) if k not in inconsistent]
        replies, retry_failed, received, total = request_replies(transport, context, others, Tree())
        accepted, failed, down = ReplySet.of({}), failed | retry_failed, down + received
    failed |= inconsistent
    passed = _merged(accepted, replies).without(failed)
    accepted, outlying, clipped = without_outliers(transport, algorithm, context.server, passed)
    return Collected(accepted, total, failed | outlying, down, clipped)


def _merged(earlier: ReplySet, replies: ReplySet) -> ReplySet:
    """Merge replies with earlier ones; without earlier ones they are returned unchanged, so stacks stay stacked."""
    return ReplySet.of({**earlier, **replies}) if earlier else replies


def _adds_up(transport: Transport, algorithm: Algorithm) -> bool:
    """Return whether replies are summed as they arrive, because no later check needs a single reply."""
    experiment = transport.experiment
    exact = upload.exact(experiment.uploads, algorithm, algorithm.sums)
    return isinstance(algorithm, Stage) and algorithm.adds_up and experiment.outliers is None and exact


def request_replies(
    transport: Transport, context: Context, clients: list[int], total: Tree | None
) -> tuple[ReplySet, dict[int, FedheadError], int, Tree | None]:
    """Query clients and check their replies; if a total is given, add the replies to it batch by batch.

    Returns:
        Valid replies (digests of them if they were added to the total), errors of the other clients, bytes received by
        the clients, and the new total.
    """
    size = max(len(clients), 1) if total is None or transport.portion is None else transport.portion
    passed = ReplySet.of({})
    failed: dict[int, FedheadError] = {}
    down, first = 0, None
    for begin in range(0, len(clients), size):
        received = transport.exchange(context, clients[begin : begin + size])
        down += received.bytes_down
        replies, faults, first = check_replies(transport, context, received, first)
        del received  # free its memory before the next batch arrives
        if total is not None:
            total, replies = _added(transport, context.algorithm, total, replies)
            if len(clients) > size:
                hand_back_memory()
        passed = _merged(passed, replies)
        failed |= faults
    return passed, failed, down, total


def _added(transport: Transport, algorithm: Algorithm, total: Tree, replies: ReplySet) -> tuple[Tree, ReplySet]:
    """Add replies to the total; return it and a digest of each reply."""
    assert isinstance(algorithm, Stage), "methods don't add up"
    digests: dict[int, ClientReply] = {}
    for k, reply in replies.items():
        sent = decoded(transport, algorithm, {k: reply})[k]
        total = algorithm.add(total, sent)
        digests[k] = reply._replace(send=algorithm.summary_for_comparison(sent), added_bytes=reply.nbytes)
    return total, ReplySet.of(digests)


def _aggregate(
    transport: Transport,
    context: Context,
    collected: Collected,
    mean: RobustMean | PrivateMean | None,
    inclusion: Mapping[int, float],
) -> Tree:
    algorithm, server, task = context.algorithm, context.server, transport.clients.task
    replies, clipped = collected.replies, collected.clipped
    if collected.total is not None:
        added = Replies(list(replies), replies.samples, [], collected.total)
        return with_frozen(server, aggregate(algorithm, server, added, task), task.model.frozen)
    sent, samples = replies.sent, dict(zip(replies, replies.samples, strict=True))
    if clipped or transport.experiment.uploads:
        trees = decoded(transport, algorithm, replies) | {k: outlier.sent for k, outlier in clipped.items()}
        sent = TreeRows([trees[k] for k in replies])
    samples |= {k: outlier.samples for k, outlier in clipped.items()}
    weights = [count / inclusion[k] if k in inclusion else count for k, count in samples.items()]
    new = aggregate(algorithm, server, Replies(list(replies), weights, sent), task, mean)
    return with_frozen(server, new, task.model.frozen)
