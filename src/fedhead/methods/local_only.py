"""Local training without communication: the baseline that every federated method must beat."""

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
    """Local training on each client's own data, without communication."""

    shared: ClassVar[tuple[str, ...]] = ()
    broadcast: ClassVar[tuple[str, ...]] = ()

    @property
    def aggregates(self) -> bool:
        """False, unless a method on this one aggregates."""
        return type(self).aggregate is not LocalOnly.aggregate

    def init_server(self, w: Weights, task: Task) -> Tree:
        """Return an empty state."""
        return Tree()

    def start(self, client: Client) -> Weights:
        """Start from the client's own model."""
        return client.state["own"]  # type: ignore[no-any-return]  # a tree's entries are untyped

    def finish(self, w: Weights, client: Client) -> Reply:
        """Keep the model."""
        return Reply(send=Tree(), keep=Tree(own=w))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Return the state unchanged."""
        return server
