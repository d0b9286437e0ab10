"""Exchange by a secure sum: the server gets the total over the clients of a cohort, and no single reply.

Clients check their own replies before they mask them. Every attempt is a new session with new keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from fedhead.algorithm.phase import Replies
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.upload import SecureSum
from fedhead.core.system.errors import FedheadError
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.server import aggregate
from fedhead.engine.policies import reply_check, secure_sums
from fedhead.engine.policies.sampling import Cohort
from fedhead.engine.rounds.exchange_record import exchange_record, skip, with_frozen
from fedhead.engine.rounds.transport import Context, Quorum, SecureStep, Transport
from fedhead.executors.client.reply_set import ClientReply, ReplySet
from fedhead.metrics.records import Row
from fedhead.privacy.secure_sum.fixed_point import Vector
from fedhead.privacy.secure_sum.server import SecureSumServer
from fedhead.privacy.secure_sum.session import Message, SecureSumError, Session


def secure_exchange(
    transport: Transport, context: Context, select: Callable[[list[int]], Cohort], secure: SecureSum
) -> tuple[Tree, Row]:
    """Exchange with a cohort by a secure sum; see `exchange`.

    Raises:
        FedheadError: If too few clients complete all steps.
    """
    algorithm, server, task = context.algorithm, context.server, transport.clients.task
    where = f"stage {algorithm.name}" if isinstance(algorithm, Stage) else f"round {context.round}"
    size = transport.experiment.exchange_size(algorithm, task.clients)
    quorum, why = transport.quorum or Quorum(), "no client takes part"
    for attempt in range(1, quorum.attempts + 1):
        present = transport.present()
        cohort = select(present)
        if not cohort.clients or (cohort.dropped and len(cohort.clients) < secure.min_clients(size)):
            return server, skip(transport, where, len(cohort.clients), cohort.dropped)
        session = secure.session(secrets.token_bytes(16), cohort.clients, size)
        steps = _Steps(transport, context, session, min(quorum.replies, len(cohort.clients)))
        try:
            vector = steps.run()
        except SecureSumError as error:
            why = str(error)
            transport.log(f"{where}, attempt {attempt}: {why}")
            if transport.quorum is None:
                raise
            continue
        finally:
            for k, fault in steps.failed.items():
                transport.log(f"{where}: {transport.client_name(k)} does not count: {fault}")
        replies = ReplySet.of(steps.replies)
        samples = sum(replies.samples)
        total = secure_sums.decode(secure.code(size), algorithm, steps.template, vector, samples, task)
        new = aggregate(algorithm, server, Replies(list(replies), replies.samples, [], total), task)
        new = with_frozen(server, new, task.model.frozen)
        reply_check.check_finite(new, f"{where}, the server")
        context.states.keep(list(replies), replies.kept)
        missing = {**transport.why_absent(present), **cohort.dropped}
        absent = {k: reason for k, reason in missing.items() if k not in replies and k not in steps.failed}
        return new, exchange_record(transport, replies, steps.failed, absent, {}, steps.down) | {"secure_sum": True}
    reasons = "; ".join(f"{transport.client_name(k)}: {fault}" for k, fault in sorted(steps.failed.items()))
    raise FedheadError(f"{where} has no secure sum after {quorum.attempts} attempts: {why} ({reasons}); fix the sites")


class _Steps:
    """Steps of one session, as the server takes them.

    Args:
        transport: Transport to the clients.
        context: Context of the exchange.
        session: The session.
        quorum: Smallest number of replies of the run.
    """

    def __init__(self, transport: Transport, context: Context, session: Session, quorum: int):
        self._transport, self._context, self._session, self._quorum = transport, context, session, quorum
        self._server = SecureSumServer(session, transport.public_keys())
        self.replies: dict[int, ClientReply] = {}  # of the clients in the sum, without their numbers
        self.failed: dict[int, FedheadError] = {}
        self.template = Tree()
        self.down = 0  # bytes
        self._up = dict.fromkeys(session.clients, 0)

    def run(self) -> Vector:
        """Return the sum of the clients' vectors.

        Raises:
            SecureSumError: If too few clients complete a step.
        """
        server = self._server
        try:
            adverts = self._ask("advertise", {k: {} for k in self._session.clients})
            shares = self._ask("share", server.advertised({k: answer[k] for k, answer in adverts.items()}))
            incoming = server.shared(shares)
            size = self._transport.portion or len(incoming)
            for begin in range(0, len(incoming), size):
                self._mask({k: incoming[k] for k in list(incoming)[begin : begin + size]})
            survivors = server.masked()
            if len(survivors) < self._quorum:
                raise SecureSumError(f"secure sum: {len(survivors)} of at least {self._quorum} clients replied")
            return server.unmasked(self._ask("unmask", dict.fromkeys(survivors, dict.fromkeys(survivors, b""))))
        finally:
            self.failed |= {k: SecureSumError(why) for k, why in server.liars.items()}
            up = {k: reply.nbytes + self._up[k] for k, reply in self.replies.items()}
            self.replies = {k: reply._replace(send=Tree(), added_bytes=up[k]) for k, reply in self.replies.items()}

    def _ask(self, step: SecureStep, messages: Mapping[int, Message]) -> dict[int, Message]:
        """Query clients and return their answers; the others drop out."""
        answers, faults = self._transport.secure_step(self._context, self._session, step, messages)
        self.failed |= faults
        self.down += sum(map(_size, messages.values()))
        for k, answer in answers.items():
            self._up[k] += _size(answer)
        return answers

    def _mask(self, messages: Mapping[int, Message]) -> None:
        """Query the masked vectors of clients and add them."""
        received = self._transport.masked_exchange(self._context, self._session, messages)
        self.failed |= received.failures
        self.down += received.bytes_down + sum(map(_size, messages.values()))
        for k, reply in received.replies.items():
            self._server.add(k, reply.send["masked"].numpy().view("uint64"))
            self.replies[k] = reply._replace(send=Tree(), added_bytes=reply.nbytes)
            self.template = self.template or self._transport.template(self._context, k)


def _size(message: Message) -> int:
    return sum(map(len, message.values()))
