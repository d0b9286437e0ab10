"""Collection of replies by a secure sum: the server gets the total over a cohort, and no single reply.

Clients check their own replies before they mask them. Every attempt is a new session with new keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from fedhead.core.system.errors import FedheadError
from fedhead.core.tree.tree import Tree
from fedhead.engine.policies.secure_sums import SecureExchange
from fedhead.engine.rounds.reply_selection import Collected
from fedhead.engine.rounds.transport import Context, Quorum, SecureStep, Transport
from fedhead.executors.client.reply_set import ClientReply, ReplySet
from fedhead.privacy.secure_sum.fixed_point import Vector
from fedhead.privacy.secure_sum.server import SecureSumServer
from fedhead.privacy.secure_sum.session import Message, SecureSumError, Session


def collect_sum(transport: Transport, context: Context, secure: SecureExchange, clients: list[int]) -> Collected:
    """Query clients for the sum of their replies.

    Args:
        transport: Transport to the clients.
        context: Context of the exchange.
        secure: The exchange.
        clients: Invited clients.

    Returns:
        The total, and the clients in it without their numbers; none if too few clients have completed a step.

    Raises:
        SecureSumError: If too few clients have completed a step, for a transport without a quorum.
    """
    session = secure.session(secrets.token_bytes(16), clients)
    steps = _Steps(transport, context, session)
    try:
        vector = steps.run()
    except SecureSumError as error:
        if transport.quorum is None:
            raise
        return Collected(ReplySet.of({}), None, steps.failed, steps.down, reason=str(error))
    replies = ReplySet.of(steps.replies)
    return Collected(replies, secure.decode(steps.form, vector, sum(replies.samples)), steps.failed, steps.down)


class _Steps:
    """Steps of one session, as the server takes them.

    Args:
        transport: Transport to the clients.
        context: Context of the exchange.
        session: The session.
    """

    def __init__(self, transport: Transport, context: Context, session: Session):
        self._transport, self._context, self._session = transport, context, session
        self._server = SecureSumServer(session, transport.public_keys())
        self.replies: dict[int, ClientReply] = {}  # of the clients in the sum, without their numbers
        self.failed: dict[int, FedheadError] = {}
        self.form = Tree()  # of a reply before it is masked, on the meta device
        self.down = 0  # bytes
        self._up = dict.fromkeys(session.clients, 0)  # bytes

    def run(self) -> Vector:
        """Return the sum of the clients' vectors.

        Raises:
            SecureSumError: If too few clients complete a step.
        """
        server, quorum = self._server, self._transport.quorum or Quorum()
        try:
            adverts = self._query("advertise", {k: {} for k in self._session.clients})
            shares = self._query("share", server.advertised({k: answer[k] for k, answer in adverts.items()}))
            incoming = server.shared(shares)
            size = self._transport.portion or len(incoming)
            for begin in range(0, len(incoming), size):
                self._query_vectors({k: incoming[k] for k in list(incoming)[begin : begin + size]})
            survivors = server.masked()
            if len(survivors) < (needed := min(quorum.replies, len(self._session.clients))):
                raise SecureSumError(f"secure sum: {len(survivors)} of at least {needed} clients replied")
            return server.unmasked(self._query("unmask", dict.fromkeys(survivors, dict.fromkeys(survivors, b""))))
        finally:
            self.failed |= {k: SecureSumError(why) for k, why in server.liars.items()}
            self.replies = {k: reply._replace(added_bytes=self._up[k]) for k, reply in self.replies.items()}

    def _query(self, step: SecureStep, messages: Mapping[int, Message]) -> dict[int, Message]:
        """Query clients and return their answers; the others drop out."""
        answers, failed = self._transport.secure_step(self._context, self._session, step, messages)
        self.failed |= failed
        self.down += sum(map(_size, messages.values()))
        for k, answer in answers.items():
            self._up[k] += _size(answer)
        return answers

    def _query_vectors(self, messages: Mapping[int, Message]) -> None:
        """Query the masked vectors of clients and add them."""
        received = self._transport.masked_exchange(self._context, self._session, messages)
        self.failed |= received.failures
        self.form = self.form or received.form
        self.down += received.bytes_down + sum(map(_size, messages.values()))
        for k, reply in received.replies.items():
            self._server.add(k, reply.send["masked"].numpy().view("uint64"))
            self._up[k] += reply.nbytes
            self.replies[k] = reply._replace(send=Tree())


def _size(message: Message) -> int:
    return sum(map(len, message.values()))
