"""Clients of a secure sum in a simulation: the code of sites, in one process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from fedhead.algorithm.base import Algorithm
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.clients import Clients
from fedhead.engine.policies import reply_check, secure_sums
from fedhead.engine.rounds.transport import Received, SecureStep
from fedhead.executors.client.reply_set import ClientReply, ReplySet
from fedhead.privacy.secure_sum.client import SecureSumClient
from fedhead.privacy.secure_sum.identity import new_keys
from fedhead.privacy.secure_sum.session import Message, Session

if TYPE_CHECKING:
    from fedhead.privacy.secure_sum.identity import PublicKey


class SimulatedSecureSum:
    """States of all clients in the current session.

    Args:
        clients: Clients of the simulation.
    """

    def __init__(self, clients: Clients):
        self._clients, self._keys = clients, new_keys(clients.holders)
        self._members: dict[int, SecureSumClient] = {}
        self.template = Tree()  # reply of the last exchange, on the meta device

    @cached_property
    def registered(self) -> dict[int, PublicKey]:
        """Public keys of the clients."""
        return {k: key.public_key() for k, key in self._keys.items()}

    def step(self, session: Session, step: SecureStep, messages: Mapping[int, Message]) -> dict[int, Message]:
        """Let clients take a step without tensors; return their answers."""
        if step == "advertise":
            self._members = {k: SecureSumClient(session, k, self._keys[k], self.registered) for k in messages}
            return {k: {k: self._members[k].advertise()} for k in messages}
        return {k: getattr(self._members[k], step)(message) for k, message in messages.items()}

    def mask(self, algorithm: Algorithm, received: Received, messages: Mapping[int, Message]) -> Received:
        """Check, encode and mask the replies of clients."""
        secure, clients = secure_sums.find(self._clients.experiment.uploads), self._clients
        assert secure is not None, "called only with secure sums"
        code = secure.code(clients.experiment.exchange_size(algorithm, clients.task.clients))
        replies, failures = dict[int, ClientReply](), dict(received.failures)
        for k, reply in received.replies.items():
            reply_check.check_finite(reply.send, f"client {k}")
            try:
                vector = secure_sums.encode(code, algorithm, reply.send, reply.samples, clients.task_of(k))
            except reply_check.Impossible as error:
                failures[k] = reply_check.Impossible(f"client {k}: {error}")
                continue
            masked = torch.from_numpy(self._members[k].mask(messages[k], vector).view("int64"))
            self.template = reply.send.map(lambda t: torch.empty_like(t, device="meta"))
            replies[k] = reply._replace(send=Tree(masked=masked))
        return Received(ReplySet.of(replies), received.bytes_down, failures)
