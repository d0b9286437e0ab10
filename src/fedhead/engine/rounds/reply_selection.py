"""The replies of a round that count: those of the right form, that a client could have computed, and no outliers."""

from __future__ import annotations

from collections.abc import Mapping

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


def check_replies(
    transport: Transport, context: Context, received: Received, first: Schema | None = None
) -> tuple[ReplySet, dict[int, FedheadError], Schema | None]:
    """Return the replies that are as expected, why the others are not, and what the first one looked like.

    Args:
        transport: The way to the clients.
        context: What the clients were asked for.
        received: What has arrived.
        first: What the first reply of the same exchange looked like, where some were checked before.
    """
    form, round = _form_of_all(transport, context, received), context.round
    if form is not None and first in (None, form):
        return received.replies, {}, form
    failed = dict(received.failures)
    finite = received.replies.finite()
    for k, reply in received.replies.items():
        known = transport.schema(context, k)
        try:
            reply_check.check_form(reply.send, first if known is None else known, k, round)
            if not finite:  # of some client
                for tree in _seen(reply):
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


def _form_of_all(transport: Transport, context: Context, received: Received) -> Schema | None:
    """Return the schema of each reply, where they have one and nothing is to be found out about single ones."""
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
    """Return whether replies are aggregated before they are looked at one by one; a non-finite one ends the run.

    The replies of a stack are then aggregated before it is known whether they are finite: a GPU's host can tell it to,
    and does not wait until it has trained.
    """
    seen = (
        (isinstance(algorithm, Stage) and algorithm.adds_up)
        or algorithm.class_rows
        or transport.experiment.outliers is not None
    )
    return transport.quorum is None and not seen


def check_after_aggregation(replies: ReplySet, round: int) -> None:
    """Raise `Diverged` for the first reply that is not finite; see `is_checked_after_aggregation`."""
    if replies.finite():
        return
    for k, reply in replies.items():
        for tree in _seen(reply):
            reply_check.check_finite(tree, f"client {k}, round {round}")


def _seen(reply: ClientReply) -> list[Tree]:
    """Return what can be checked of a reply: a site checks by itself what it keeps."""
    return [reply.send, *([reply.kept] if isinstance(reply.kept, Tree) else [])]


def _check_possible(transport: Transport, algorithm: Algorithm, client: int, reply: ClientReply) -> None:
    """Raise `Impossible` for numbers that no client could have computed, where uploads let them be seen."""
    uploads, task = transport.experiment.uploads, transport.clients.task_of(client)
    if not upload.exact(uploads, algorithm, algorithm.class_rows):
        return
    try:
        algorithm.check_reply(upload.decode(uploads, algorithm, reply.send, task), reply.samples, task)
    except BadInput as error:
        raise reply_check.Impossible(f"client {client}: {error}") from error


def find_inconsistent_replies(transport: Transport, algorithm: Algorithm, replies: ReplySet) -> dict[int, FedheadError]:
    """Return why replies can't be aggregated with the others, where uploads let them be seen."""
    if not isinstance(algorithm, Stage) or not algorithm.class_rows:
        return {}
    if not upload.exact(transport.experiment.uploads, algorithm, algorithm.class_rows):
        return {}
    whole = {k: reply for k, reply in replies.items() if reply.added_bytes is None}
    digests = {k: algorithm.summary_for_comparison(sent) for k, sent in decoded(transport, algorithm, whole).items()}
    digests |= {k: reply.send for k, reply in replies.items() if k not in whole}
    found = algorithm.find_inconsistent_replies(digests)
    return {k: reply_check.Impossible(f"client {k}: {why}") for k, why in found.items()}


def without_outliers(
    transport: Transport, algorithm: Algorithm, server: Tree, replies: ReplySet
) -> tuple[ReplySet, dict[int, FedheadError], dict[int, Outlier]]:
    """Return the replies that count, why those that stand out don't, and those that are scaled down instead."""
    policy = transport.experiment.outliers
    if policy is None or not replies:
        return replies, {}, {}
    samples = {k: reply.samples for k, reply in replies.items()}
    found = outliers.find(policy, algorithm, server, decoded(transport, algorithm, replies), samples)
    if policy.action == "clip":
        return replies, {}, found
    kind = reply_check.Refused if policy.action == "reject" else reply_check.Impossible
    odd: dict[int, FedheadError] = {k: kind(f"client {k}: {outlier.why}") for k, outlier in found.items()}
    return replies.without(odd), odd, {}


def decoded(transport: Transport, algorithm: Algorithm, replies: Mapping[int, ClientReply]) -> dict[int, Tree]:
    """Return what clients sent, as it was before it passed the uploads."""
    uploads, task_of = transport.experiment.uploads, transport.clients.task_of
    return {k: upload.decode(uploads, algorithm, r.send, task_of(k)) for k, r in replies.items()}
