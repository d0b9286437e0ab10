"""Secure sums of replies: checks before the run, encoding at the clients, decoding at the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import Task
from fedhead.algorithm.upload import SecureSum, Upload
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import describe, rebuild
from fedhead.engine.policies.reply_check import Impossible
from fedhead.privacy.secure_sum.fixed_point import FixedPoint, Vector
from fedhead.privacy.secure_sum.identity import require_cryptography
from fedhead.privacy.secure_sum.session import Message, Session

if TYPE_CHECKING:
    from fedhead.privacy.secure_sum.client import SecureSumClient


def find(uploads: Sequence[Upload]) -> SecureSum | None:
    """Return the run's secure sum; None: replies are sent openly."""
    return next((step for step in uploads if isinstance(step, SecureSum)), None)


def check(
    uploads: Sequence[Upload], exchanges: Sequence[Algorithm], clients: int, cohort: int, reasons: Sequence[str]
) -> None:
    """Check before the run that everything that clients send can be summed securely.

    Args:
        uploads: Uploads of the run.
        exchanges: The method, if there are rounds, and the stages.
        clients: Number of clients.
        cohort: Number of clients in a round.
        reasons: Reasons why other components don't support sums.

    Raises:
        BadInput: If something can't be summed.
    """
    if (secure := find(uploads)) is None:
        return
    require_cryptography()
    if uploads[-1] is not secure or any(type(step).decode is not Upload.decode for step in uploads):
        raise BadInput(
            "uploads: secure_sum must be the last upload, and those before it must need no decoding, as clip does"
        )
    for algorithm in exchanges:
        if isinstance(algorithm, Method) and not algorithm.aggregates:
            raise BadInput(f"secure_sum has no effect: {algorithm.name} sends the server nothing; leave it out")
        if algorithm.aggregates and not algorithm.adds_up:
            raise BadInput(
                f"secure_sum: {algorithm.name} sends replies that are neither sums nor means weighted by samples: use "
                "another method or stage, or leave secure_sum out; a stage of your own that sends sums declares adds_up"
            )
    if reasons:
        raise BadInput(f"secure_sum: {reasons[0]}")
    for count in (clients, *(cohort for algorithm in exchanges if isinstance(algorithm, Method))):
        if (least := secure.min_clients(count)) > count:
            raise BadInput(f"secure_sum: {count} clients are too few: a sum covers at least {least}")
    _ = FixedPoint(clients, secure.range).bits  # raises for a range without room


@dataclass(frozen=True)
class SecureExchange:
    """Exchange in which the server learns only the sum of the replies.

    Args:
        algorithm: Method or stage.
        task: Task of the clients.
        secure: Secure sum of the run.
        cohort: Number of clients in the exchange, if none is absent.
    """

    algorithm: Algorithm
    task: Task
    secure: SecureSum
    cohort: int

    @classmethod
    def of(cls, uploads: Sequence[Upload], algorithm: Algorithm, task: Task, cohort: int) -> SecureExchange | None:
        """Return an exchange; None if the run has no secure sum, or clients send nothing that is aggregated."""
        secure = find(uploads)
        return cls(algorithm, task, secure, cohort) if secure is not None and algorithm.aggregates else None

    @property
    def min_clients(self) -> int:
        """Minimum number of clients in the sum."""
        return self.secure.min_clients(self.cohort)

    @property
    def _code(self) -> FixedPoint:
        return FixedPoint(self.cohort, self.secure.range)

    def session(self, id: bytes, clients: Sequence[int]) -> Session:
        """Return a session of invited clients."""
        return Session(id, tuple(clients), self.min_clients, self.secure.neighbours)

    def mask(self, member: SecureSumClient, shares: Message, send: Tree, samples: float) -> Tree:
        """Check a client's reply, encode it and mask it; entries that are no sums are weighted by samples.

        Args:
            member: The client in the session.
            shares: Shares of the other clients, for its step.
            send: Reply of the client.
            samples: Number of its training samples.

        Raises:
            Impossible: If the reply has numbers that no client could have computed.
            BadInput: If a number is outside the range of the encoding.
        """
        try:
            self.algorithm.check_reply(send, samples, self.task)
        except BadInput as error:
            raise Impossible(str(error)) from error
        vector = self._code.encode(self._weighted(self._summed(send), samples).leaves())
        return Tree(masked=torch.from_numpy(member.mask(shares, vector).view("int64")))

    def masked_form(self, form: Tree) -> Tree:
        """Return the form of a masked reply, given that of the reply, on the meta device."""
        length = sum(t.numel() for t in self._summed(form).tensors())
        return Tree(masked=torch.empty(length, dtype=torch.int64, device="meta"))

    def decode(self, form: Tree, vector: Vector, samples: float) -> Tree:
        """Decode a sum to the totals of `Replies.total`.

        Args:
            form: Reply of a client, possibly on the meta device, with names, shapes and dtypes.
            vector: Sum of the clients' vectors.
            samples: Number of samples of the clients in the sum.
        """
        entries, algorithm = self._summed(form), self.algorithm
        numbers = rebuild(describe(entries), self._code.decode(vector, entries.leaves()))
        total = self._weighted(numbers, 1 / samples).map(lambda t, like: t.to(like.dtype), entries)
        if not isinstance(algorithm, Stage):
            return total
        return algorithm.add(Tree(), total.replace(algorithm.public(self.task)))

    def _summed(self, send: Tree) -> Tree:
        """Return the entries of a reply that are summed: without those that the server knows."""
        public = self.algorithm.public(self.task)
        return Tree({name: value for name, value in send.items() if name not in public})

    def _weighted(self, send: Tree, weight: float) -> Tree:
        """Return a reply with entries that are no sums multiplied by a weight, in double precision."""
        means = Tree({name: value for name, value in send.items() if name not in self.algorithm.sums})
        return send.replace(means.map(lambda t: t.double() * weight))
