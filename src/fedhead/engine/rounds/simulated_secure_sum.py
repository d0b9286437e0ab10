"""Clients of a secure sum in a simulation: the code of sites, in one process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from fedhead.algorithm.base import Algorithm
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.clients import Clients
from fedhead.engine.policies import reply_check
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
        secure = self._clients.experiment.secure_exchange(algorithm, self._clients.task)  # all have one architecture
        assert secure is not None, "called only with secure sums"
        replies, failures, form = dict[int, ClientReply](), dict(received.failures), Tree()
        for k, reply in received.replies.items():
            reply_check.check_finite(reply.send, f"client {k}")
            form = reply.send.map(lambda t: torch.empty_like(t, device="meta"))
            try:
                masked = secure.mask(self._members[k], messages[k], reply.send, reply.samples)
            except reply_check.Impossible as error:
                failures[k] = reply_check.Impossible(f"client {k}: {error}")
                continue
            replies[k] = reply._replace(send=masked)
        return Received(ReplySet.of(replies), received.bytes_down, failures, form)
