"""Replies of clients: single ones, or rows of one stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

from torch import Tensor

from fedhead.algorithm.class_rows import small_classes
from fedhead.algorithm.phase import Reply
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.finite import all_finite
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees, TreeRows
from fedhead.executors.client.job import Job


class ClientReply(NamedTuple):
    """Reply of one client as received by the server."""

    send: Tree  # message after the uploads
    kept: Any  # client state for the transport to store once the reply is accepted
    samples: float  # n_k, number of training samples
    left_out: Sequence[int] = ()  # classes with too few samples to be sent
    train_loss: Tensor | None = None  # mean loss of its steps, on the device; None without steps
    added_bytes: int | None = None  # bytes sent, if `send` was summed up and only a digest of it remains

    @property
    def nbytes(self) -> int:
        """Bytes sent."""
        return self.send.nbytes if self.added_bytes is None else self.added_bytes


class ReplyRows(Sequence[Reply]):
    """Replies of a job's clients, in the order of the job.

    Args:
        send: Messages of the clients.
        keep: States of the clients.
        losses: Mean loss of each client's steps, in the entry `train`.
    """

    def __init__(self, send: TreeRows, keep: TreeRows, losses: TreeRows):
        self.send, self.keep, self.losses = send, keep, losses

    @classmethod
    def of_stack(cls, stacked: Reply, clients: int) -> ReplyRows:
        """Create replies from a stack of clients.

        Args:
            stacked: Reply whose tensors have a client axis.
            clients: Number of clients.
        """
        return cls(*(StackedTrees(tree, range(clients)) for tree in stacked))

    def take(self, places: Sequence[int]) -> ReplyRows:
        """Return some of the replies.

        Args:
            places: Positions of the replies.
        """
        return ReplyRows(self.send.take(places), self.keep.take(places), self.losses.take(places))

    def __len__(self) -> int:
        return len(self.send)

    @overload
    def __getitem__(self, place: int) -> Reply: ...
    @overload
    def __getitem__(self, place: slice) -> list[Reply]: ...
    def __getitem__(self, place: int | slice) -> Reply | list[Reply]:
        if isinstance(place, slice):
            return [self[index] for index in range(len(self))[place]]
        return Reply(self.send[place], self.keep[place], self.losses[place])


class ReplySet(Mapping[int, ClientReply]):
    """Replies by client, in the order of the clients' numbers.

    Args:
        clients: Client numbers, in ascending order.
        replies: Replies of the clients.
        samples: Number of training samples of each client.
        left_out: Classes with too few samples to be sent, by client.
        added_bytes: Bytes sent, by client, if only a digest of the reply remains.
        seen_finite: Returns whether all numbers are known to be finite; may synchronize with a GPU.
        whole_stacks: Whether the clients of every job were trained in one stack.
    """

    def __init__(
        self,
        clients: Sequence[int],
        replies: ReplyRows,
        samples: Sequence[float],
        left_out: Mapping[int, Sequence[int]] | None = None,
        added_bytes: Mapping[int, int] | None = None,
        seen_finite: Callable[[], bool] = lambda: False,
        whole_stacks: bool = False,
    ):
        self._places = {client: place for place, client in enumerate(clients)}
        self._replies = replies
        self.samples = list(samples)
        self.left_out = dict(left_out or {})
        self._added_bytes = dict(added_bytes or {})
        self._seen_finite, self.whole_stacks = seen_finite, whole_stacks
        self.sent, self.kept = replies.send, replies.keep

    @classmethod
    def of(cls, replies: Mapping[int, ClientReply]) -> ReplySet:
        """Create a set from single replies."""
        order = sorted(replies)
        each = [replies[k] for k in order]
        losses = [Tree() if reply.train_loss is None else Tree(train=reply.train_loss) for reply in each]
        rows = ReplyRows(*(TreeRows(part) for part in ([r.send for r in each], [r.kept for r in each], losses)))
        left_out = {k: reply.left_out for k, reply in replies.items() if reply.left_out}
        added = {k: reply.added_bytes for k, reply in replies.items() if reply.added_bytes is not None}
        return cls(order, rows, [reply.samples for reply in each], left_out, added)

    @classmethod
    def of_jobs(
        cls,
        executor: str,
        jobs: Sequence[Job],
        replies: Sequence[Sequence[Reply]],
        seen_finite: Callable[[], bool] = lambda: False,
    ) -> ReplySet:
        """Create a set from the replies of all jobs.

        Args:
            executor: Name of the executor, for errors.
            jobs: One job per architecture.
            replies: Replies of each job, in the order of its clients.
            seen_finite: Returns whether all numbers are known to be finite.

        Raises:
            BadInput: If there is not one reply per client.
        """
        for job, part in zip(jobs, replies, strict=True):
            if not isinstance(part, Sequence) or len(part) != len(job.clients):
                returned = f"{len(part)} replies" if isinstance(part, Sequence) else type(part).__name__
                raise BadInput(
                    f"executor {executor}: train returned {returned} for {len(job.clients)} clients: "
                    "return one Reply per client of the job, in the order of job.clients"
                )
        clients = [k for job in jobs for k in job.clients]
        samples = [float(len(indices)) for job in jobs for indices in job.indices]
        left_out = {
            k: classes
            for job in jobs
            for k, counts in zip(job.clients, job.counts, strict=True)
            if (classes := small_classes(job.program.algorithm, counts, job.program.task.min_class_count))
        }
        if len(replies) == 1 and isinstance(replies[0], ReplyRows):
            rows = replies[0]
        else:
            every = [reply for part in replies for reply in part]
            rows = ReplyRows(*(TreeRows(list(trees)) for trees in zip(*every, strict=True)))
        order = sorted(range(len(clients)), key=clients.__getitem__)
        if order != list(range(len(clients))):
            clients, samples = [clients[place] for place in order], [samples[place] for place in order]
            rows = rows.take(order)
        whole = all(isinstance(part, ReplyRows) and isinstance(part.send, StackedTrees) for part in replies)
        return cls(clients, rows, samples, left_out, seen_finite=seen_finite, whole_stacks=whole)

    def finite(self) -> bool:
        """Return whether all numbers are finite; a site on another machine checks its own state."""
        kept = (tree for tree in self.kept if isinstance(tree, Tree))
        return self._seen_finite() or all_finite([*self.sent, *kept])

    def losses(self) -> dict[int, float]:
        """Return the mean loss of each client that took steps, with a single device synchronization."""
        numbers = self._replies.losses.numbers("train")
        return {client: numbers[place] for client, place in self._places.items() if place in numbers}

    def map_sent(self, change: Callable[[int, Tree], Tree]) -> ReplySet:
        """Return the replies with changed messages, by client number and message."""
        return ReplySet.of({k: reply._replace(send=change(k, reply.send)) for k, reply in self.items()})

    def without(self, clients: Mapping[int, Any]) -> ReplySet:
        """Return the replies without those of some clients."""
        remaining = [k for k in self._places if k not in clients]
        if len(remaining) == len(self):
            return self
        places = [self._places[k] for k in remaining]
        return ReplySet(
            remaining,
            self._replies.take(places),
            [self.samples[place] for place in places],
            {k: classes for k, classes in self.left_out.items() if k not in clients},
            {k: size for k, size in self._added_bytes.items() if k not in clients},
            self._seen_finite,
        )

    @property
    def nbytes(self) -> int:
        """Bytes sent by all clients."""
        if not self._added_bytes:
            return self.sent.nbytes
        return sum(reply.nbytes for reply in self.values())

    def __getitem__(self, client: int) -> ClientReply:
        place = self._places[client]
        send, kept, losses = self._replies[place]
        left_out, added = self.left_out.get(client, ()), self._added_bytes.get(client)
        return ClientReply(send, kept, self.samples[place], left_out, losses.get("train"), added)

    def __contains__(self, client: object) -> bool:
        return client in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
