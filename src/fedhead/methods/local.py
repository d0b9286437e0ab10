"""Local training: every client on its own, the floor that each federated method must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedhead.client import Client
from fedhead.exchange import Method, method
from fedhead.tree import Tree, Weights
from fedhead.types import Replies, Reply, Task


@method("local")
@dataclass(frozen=True)
class Local(Method):
    """Train every client on its own data alone; nothing is sent."""

    shared: ClassVar[tuple[str, ...]] = ()
    downlink: ClassVar[tuple[str, ...]] = ()

    def init_server(self, w: Weights, task: Task) -> Tree:
        """The server has nothing to hold."""
        return Tree()

    def start(self, me: Client) -> Weights:
        """Go on from the client's own model."""
        return me.state["own"]  # type: ignore[no-any-return]  # a tree's entries are untyped

    def finish(self, w: Weights, me: Client) -> Reply:
        """Keep the model."""
        return Reply(send=Tree(), keep=Tree(own=w))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Nothing arrives."""
        return server
