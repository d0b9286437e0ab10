"""Local training alone: every client on its own, the floor that each federated method must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.task import Task
from fedhead.core.tree.tree import Tree, Weights


@method("local")
@dataclass(frozen=True)
class LocalOnly(Method):
    """Train every client on its own data alone; nothing is sent."""

    shared: ClassVar[tuple[str, ...]] = ()
    broadcast: ClassVar[tuple[str, ...]] = ()

    def init_server(self, w: Weights, task: Task) -> Tree:
        """The server has nothing to hold."""
        return Tree()

    def start(self, client: Client) -> Weights:
        """Go on from the client's own model."""
        return client.state["own"]  # type: ignore[no-any-return]  # a tree's entries are untyped

    def finish(self, w: Weights, client: Client) -> Reply:
        """Keep the model."""
        return Reply(send=Tree(), keep=Tree(own=w))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Nothing arrives."""
        return server
