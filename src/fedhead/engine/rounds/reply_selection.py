"""Selection of valid replies: checks of schema, finiteness and plausibility, and detection of outliers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from fedhead.algorithm import upload
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import BadInput, Diverged, FedheadError
from fedhead.core.tree.schema import Schema, schema
from fedhead.core.tree.tree import Tree
from fedhead.engine.policies import outliers, reply_check
from fedhead.engine.policies.outliers import Outlier
from fedhead.engine.rounds.transport import Context, Received, Transport
from fedhead.executors.client.reply_set import ClientReply, ReplySet


class Collected(NamedTuple):
    """Replies that count after an attempt to collect them."""

    replies: ReplySet
    total: Tree | None  # of the replies, if they were added up
    failed: Mapping[int, FedheadError]  # errors of the other queried clients
    bytes_down: int  # bytes received by the clients
    clipped: Mapping[int, Outlier] = MappingProxyType({})
    reason: str = ""  # reason why no reply counts


def check_replies(
    transport: Transport, context: Context, received: Received, first: Schema | None = None
) -> tuple[ReplySet, dict[int, FedheadError], Schema | None]:
    """Return the valid replies, the errors of the others, and the schema of the first reply.

    Args:
        transport: Transport to the clients.
        context: Context of the exchange.
        received: Replies and failures.
        first: Schema of the first reply of this exchange, if an earlier batch was checked.
    """
    shared, round = _shared_schema(transport, context, received), context.round
    if shared is not None and first in (None, shared):
        return received.replies, {}, shared
    failed = dict(received.failures)
    finite = received.replies.finite()
    for k, reply in received.replies.items():
        expected = transport.schema(context, k)
        try:
            reply_check.check_form(reply.send, first if expected is None else expected, k, round)
            if not finite:  # find the client
                for tree in _visible_trees(reply):
                    reply_check.check_finite(tree, f"client {k}, round {round}")
            _check_possible(transport, context.algorithm, k, reply)
        except Diverged as error:
            drops = transport.experiment.outliers is not None and transport.experiment.outliers.action == "drop"
            failed[k] = reply_check.Impossible(str(error)) if drops else error
            continue
        except FedheadError as error:
            failed[k] = error
            continue
        first = schema(reply.send) if first is None else first
    return received.replies.without(failed), failed, first


def _shared_schema(transport: Transport, context: Context, received: Received) -> Schema | None:
    """Return the schema that all replies share; None if replies must be checked one by one."""
    replies = received.replies
    if not replies or received.failures or transport.experiment.uploads:
        return None
    if type(context.algorithm).check_reply is not Algorithm.check_reply:
        return None
    if any(transport.schema(context, k) is not None for k in replies):
        return None
    if not (is_checked_after_aggregation(transport, context.algorithm) or replies.finite()):
        return None
    return replies.sent.schema()


def is_checked_after_aggregation(transport: Transport, algorithm: Algorithm) -> bool:
    """Return whether finiteness is checked only after aggregation; a non-finite reply then ends the run.

    This avoids a device synchronization: the host queues the aggregation while the GPU still trains.
    """
    inspected = (
        (isinstance(algorithm, Stage) and algorithm.adds_up)
        or algorithm.class_rows
        or transport.experiment.outliers is not None
    )
    return transport.quorum is None and not inspected


def check_after_aggregation(replies: ReplySet, round: int) -> None:
    """Raise `Diverged` for the first reply that is not finite; see `is_checked_after_aggregation`."""
    if replies.finite():
        return
    for k, reply in replies.items():
        for tree in _visible_trees(reply):
            reply_check.check_finite(tree, f"client {k}, round {round}")


def _visible_trees(reply: ClientReply) -> list[Tree]:
    """Return the trees of a reply that the server can check; sites check their client state themselves."""
    return [reply.send, *([reply.kept] if isinstance(reply.kept, Tree) else [])]


def _check_possible(transport: Transport, algorithm: Algorithm, client: int, reply: ClientReply) -> None:
    """Raise `Impossible` for numbers that no client could have computed, if uploads preserve the numbers."""
    uploads, task = transport.experiment.uploads, transport.clients.task_of(client)
    if not upload.exact(uploads, algorithm, algorithm.class_rows):
        return
    try:
        algorithm.check_reply(upload.decode(uploads, algorithm, reply.send, task), reply.samples, task)
    except BadInput as error:
        raise reply_check.Impossible(f"client {client}: {error}") from error


def find_inconsistent_replies(transport: Transport, algorithm: Algorithm, replies: ReplySet) -> dict[int, FedheadError]:
    """Return an error for each reply that contradicts the others, if uploads preserve the numbers."""
    if not isinstance(algorithm, Stage) or not algorithm.class_rows:
        return {}
    if not upload.exact(transport.experiment.uploads, algorithm, algorithm.class_rows):
        return {}
    whole = {k: reply for k, reply in replies.items() if reply.added_bytes is None}
    digests = {k: algorithm.summary_for_comparison(sent) for k, sent in decoded(transport, algorithm, whole).items()}
    digests |= {k: reply.send for k, reply in replies.items() if k not in whole}
    reasons = algorithm.find_inconsistent_replies(digests)
    return {k: reply_check.Impossible(f"client {k}: {why}") for k, why in reasons.items()}


def without_outliers(
    transport: Transport, algorithm: Algorithm, server: Tree, replies: ReplySet
) -> tuple[ReplySet, dict[int, FedheadError], dict[int, Outlier]]:
    """Return the accepted replies, the errors of rejected outliers, and the outliers to be clipped."""
    policy = transport.experiment.outliers
    if policy is None or not replies:
        return replies, {}, {}
    samples = {k: reply.samples for k, reply in replies.items()}
    detected = outliers.find(policy, algorithm, server, decoded(transport, algorithm, replies), samples)
    if policy.action == "clip":
        return replies, {}, detected
    kind = reply_check.Refused if policy.action == "reject" else reply_check.Impossible
    errors: dict[int, FedheadError] = {k: kind(f"client {k}: {outlier.why}") for k, outlier in detected.items()}
    return replies.without(errors), errors, {}


def decoded(transport: Transport, algorithm: Algorithm, replies: Mapping[int, ClientReply]) -> dict[int, Tree]:
    """Return the sent trees of replies, with the uploads undone."""
    uploads, task_of = transport.experiment.uploads, transport.clients.task_of
    return {k: upload.decode(uploads, algorithm, r.send, task_of(k)) for k, r in replies.items()}
