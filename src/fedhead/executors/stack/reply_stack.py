"""The replies of a stack of clients, taken apart only when single ones are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

from fedhead.algorithm.phase import Reply
from fedhead.core.tree.stacked_trees import StackedTrees


class ReplyStack(Sequence[Reply]):
    """The replies of clients that were trained in one stack.

    Args:
        stacked: A reply whose tensors have a client axis.
        rows: The row of each client along that axis.
    """

    def __init__(self, stacked: Reply, rows: Sequence[int]):
        self.stacked = stacked
        self.send, self.keep, self.losses = (StackedTrees(part, rows) for part in stacked)

    def in_places(self, places: Sequence[int]) -> ReplyStack:
        """Return the replies in another order.

        Args:
            places: The new place of each reply.
        """
        row = dict(zip(places, self.send.rows, strict=True))
        return ReplyStack(self.stacked, [row[place] for place in range(len(places))])

    def take(self, places: Sequence[int]) -> ReplyStack:
        """Return some of the replies.

        Args:
            places: Their places among these.
        """
        return ReplyStack(self.stacked, [self.send.rows[place] for place in places])

    @cached_property
    def _replies(self) -> list[Reply]:
        return [Reply(*each) for each in zip(self.send, self.keep, self.losses, strict=True)]

    def __len__(self) -> int:
        return len(self.send)

    @overload
    def __getitem__(self, place: int) -> Reply: ...
    @overload
    def __getitem__(self, place: slice) -> list[Reply]: ...
    def __getitem__(self, place: int | slice) -> Reply | list[Reply]:
        return self._replies[place]


def in_whole_stacks(replies: Sequence[Sequence[Reply]]) -> bool:
    """Return whether the clients of every job were trained in one stack.

    Args:
        replies: The replies of each job, as an executor returned them.
    """
    return all(isinstance(each, ReplyStack) for each in replies)
