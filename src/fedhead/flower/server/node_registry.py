"""Registry of Flower's nodes by site, with what each site said of itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedhead.flower.server.messaging import Failure
from fedhead.flower.wire.protocol import Response

RETRY_SECONDS, LONGEST_RETRY = 60.0, 3600.0  # until a refused node is asked again, twice as long each time


@dataclass
class NodeRegistry:
    """The sites by name; a node is only their present address, and changes when a site is started anew."""

    sites: list[str]
    keys: Mapping[str, bytes] = field(default_factory=dict)  # a site's public key; empty where nodes have none
    nodes: dict[str, int] = field(default_factory=dict)  # a site's node
    hellos: dict[str, Response] = field(default_factory=dict)  # what a site said when it came
    refused: dict[int, Failure] = field(default_factory=dict)  # nodes that can't take part, and why
    rivals: dict[int, str] = field(default_factory=dict)  # nodes that came with the name of a site that is here
    # when a refused node is asked again, and after how long a wait
    retries: dict[int, tuple[float, float]] = field(default_factory=dict)

    def unknown_nodes(self, connected: set[int]) -> list[int]:
        """Return connected nodes that have not been asked who they are."""
        again = {node for node, name in self.rivals.items() if self.nodes.get(name) not in connected}
        # a node that said why it can't take part may have been fixed; one that said nothing would be waited for again
        again |= {n for n, why in self.refused.items() if why.site and time.monotonic() >= self.retries[n][0]}
        # a node may come back fixed, and a rival whose name is free now may be the site's new node
        self.refused = {n: why for n, why in self.refused.items() if n in connected and n not in again}
        self.rivals = {n: name for n, name in self.rivals.items() if n in self.refused}
        known = set(self.nodes.values()) | self.refused.keys()
        return sorted(connected - known)

    def refusal(self, node: int, name: str, keys: Mapping[int, bytes], connected: set[int]) -> Failure | None:
        """Return why a node can't have a site's name, None if it can.

        Args:
            node: The node that uses the name.
            name: A site's name.
            keys: The nodes' public keys.
            connected: The nodes that are there now: a site that is among them keeps its name.
        """
        if name in self.keys and keys.get(node) != self.keys[name]:
            return Failure(f"it calls itself {name}, but its key is not the one that was registered for {name}")
        holder = self.nodes.get(name)
        if holder is None or holder == node or holder not in connected:
            return None
        self.rivals[node] = name
        return Failure(f"it calls itself {name}, which is here already as node {holder}")

    def refuse(self, node: int, failure: Failure, key: bytes | None = None) -> Failure:
        """Note why a node can't take part; if a site said so, it is asked again after a while.

        Args:
            node: The node.
            failure: The reason, with the name that the node gave.
            key: The node's public key, which says which site it is whatever it calls itself; None: it has none.

        Returns:
            The reason with the name that is known to be the node's.
        """
        if self.keys:
            owner = next((name for name, own in self.keys.items() if own == key), None)
            if failure.site != owner:  # what it says must not be held against the site whose name it gave
                failure = Failure(Failure(failure.reason, owner).line)
        self.refused[node] = failure
        _, waited = self.retries.get(node, (0.0, RETRY_SECONDS / 2))
        wait = min(2 * waited, LONGEST_RETRY)
        self.retries[node] = (time.monotonic() + wait, wait)
        return failure

    def forget(self, name: str) -> None:
        """Have a site's node asked again who it is and what it holds."""
        self.nodes.pop(name, None)

    def enter(self, node: int, response: Response) -> str | None:
        """Register a node as the site that it names; returns a message for the operator, if there is one."""
        name = response.site
        before = self.nodes.get(name)
        self.retries.pop(node, None)
        self.nodes[name], self.hellos[name] = node, response
        return None if before in (None, node) else f"site {name} has come back as another node ({before} -> {node})"

    def complete(self, present: list[int]) -> bool:
        """Return whether every site has joined or has said why it can't."""
        named = {failure.site for failure in self.refused.values()}
        return all(k in present or name in named for k, name in enumerate(self.sites))

    def present(self, connected: set[int]) -> list[int]:
        """Return the numbers of the sites that are connected and hold training data."""
        return [
            k
            for k, name in enumerate(self.sites)
            if self.nodes.get(name) in connected and self.hellos[name].samples > 0
        ]

    def tests(self, client: int) -> int:
        """Return how many test samples a site has."""
        hello = self.hellos.get(self.sites[client])
        return hello.tests if hello else 0
