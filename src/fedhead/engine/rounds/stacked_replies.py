"""The replies of a cohort that was trained in one stack: what is done with all of them needs no single ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property

from fedhead.core.tree.stacked_trees import StackedTrees
from fedhead.engine.rounds.transport import ClientReply
from fedhead.executors.stack.reply_stack import ReplyStack


class StackedReplies(MutableMapping[int, ClientReply]):
    """Replies by client, of which single ones are only made when they are asked for.

    Args:
        clients: The clients' numbers, in ascending order.
        replies: Their replies, in the same order.
        samples: How many training samples each has.
        finite: Says whether all their numbers are finite, for which a GPU is waited for.
    """

    def __init__(
        self,
        clients: Sequence[int],
        replies: ReplyStack,
        samples: Sequence[float],
        finite: Callable[[], bool] = lambda: False,
    ):
        self._clients = dict.fromkeys(clients)  # in their order
        self._replies = replies
        self.samples = list(samples)
        self.finite = finite
        self.whole = True  # whether no reply was replaced or left out

    @property
    def sent(self) -> StackedTrees:
        """What the clients sent, in the order of their numbers."""
        return self._replies.send

    @property
    def kept(self) -> StackedTrees:
        """What the clients keep, in the order of their numbers."""
        return self._replies.keep

    def train_losses(self) -> list[float] | None:
        """Return the mean loss of each client's steps, as a GPU has computed it; None where there were no phases."""
        stacked = self._replies.losses.stacked.get("train")
        if stacked is None:
            return None
        values = stacked.tolist()
        return [values[row] for row in self._replies.losses.rows]

    @cached_property
    def _each(self) -> dict[int, ClientReply]:
        return {
            k: ClientReply(reply.send, reply.keep, samples, train_loss=reply.losses.get("train"))
            for k, reply, samples in zip(self._clients, self._replies, self.samples, strict=True)
        }

    def __getitem__(self, client: int) -> ClientReply:
        return self._each[client]

    def __setitem__(self, client: int, reply: ClientReply) -> None:
        self._each[client], self.whole = reply, False

    def __delitem__(self, client: int) -> None:
        del self._each[client]
        self.whole = False

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients if self.whole else self._each)

    def __contains__(self, client: object) -> bool:
        return client in (self._clients if self.whole else self._each)

    def __len__(self) -> int:
        return len(self._clients if self.whole else self._each)


def as_stack(replies: Mapping[int, ClientReply]) -> StackedReplies | None:
    """Return replies as they came out of one stack; None where they did not, or not all of them."""
    return replies if isinstance(replies, StackedReplies) and replies.whole else None
