"""Registry of Flower nodes by site."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedhead.flower.server.messaging import Failure
from fedhead.flower.wire.protocol import Response

RETRY_SECONDS, LONGEST_RETRY = 60.0, 3600.0  # exponential backoff for refused nodes


@dataclass
class NodeRegistry:
    """Sites and their current nodes; a restarted site has a new node."""

    sites: list[str]
    keys: Mapping[str, bytes] = field(default_factory=dict)  # public keys by site; empty without authentication
    nodes: dict[str, int] = field(default_factory=dict)  # current node by site
    hellos: dict[str, Response] = field(default_factory=dict)  # first response by site
    refused: dict[int, Failure] = field(default_factory=dict)  # reasons of refused nodes
    rivals: dict[int, str] = field(default_factory=dict)  # nodes with the name of a connected site
    # Time of the next request to a refused node, and the current backoff.
    retries: dict[int, tuple[float, float]] = field(default_factory=dict)

    def unknown_nodes(self, connected: set[int]) -> list[int]:
        """Return connected nodes whose site is unknown, or that are due for a retry."""
        again = {node for node, name in self.rivals.items() if self.nodes.get(name) not in connected}
        # Retry nodes that reported a reason, which may be fixed now; a silent node would only cause another timeout.
        again |= {n for n, why in self.refused.items() if why.site and time.monotonic() >= self.retries[n][0]}
        # Retry nodes that had been offline; a node whose key is registered reconnects with the same number.
        again |= {n for n, why in self.refused.items() if why.offline}
        # A node may reconnect after a fix, and a rival may be the site's new node once the name is free.
        self.refused = {n: why for n, why in self.refused.items() if n in connected and n not in again}
        self.rivals = {n: name for n, name in self.rivals.items() if n in self.refused}
        known = set(self.nodes.values()) | self.refused.keys()
        return sorted(connected - known)

    def refusal(self, node: int, name: str, keys: Mapping[int, bytes], connected: set[int]) -> Failure | None:
        """Return the reason why a node can't use a site's name; None if it can.

        Args:
            node: Node that uses the name.
            name: Name of a site.
            keys: Public keys by node.
            connected: Connected nodes; a connected site keeps its name.
        """
        if name in self.keys and keys.get(node) != self.keys[name]:
            return Failure(f"it calls itself {name}, but its key is not the one that was registered for {name}")
        holder = self.nodes.get(name)
        if holder is None or holder == node or holder not in connected:
            return None
        self.rivals[node] = name
        return Failure(f"it calls itself {name}, which is here already as node {holder}")

    def refuse(self, node: int, failure: Failure, key: bytes | None = None) -> str:
        """Record a refused node; it is retried later if a site reported the reason, or if it was offline.

        Args:
            node: Refused node.
            failure: Reason, with the name that the node used.
            key: Public key of the node, which identifies its site; None: no authentication.

        Returns:
            A message for the operator, with the authenticated name of the node.
        """
        owner, reason = failure.site, failure.reason
        if self.keys:
            owner = next((name for name, site_key in self.keys.items() if site_key == key), None)
            if failure.site != owner:  # don't blame the site whose name it used
                failure = Failure(Failure(reason, owner).line, offline=failure.offline)
        self.refused[node] = failure
        _, waited = self.retries.get(node, (0.0, RETRY_SECONDS / 2))
        wait = min(2 * waited, LONGEST_RETRY)
        self.retries[node] = (time.monotonic() + wait, wait)
        who = f"site {owner} (node {node})" if owner else f"node {node}"
        return f"{who} is left out: {reason}"

    def forget(self, name: str) -> None:
        """Remove a site's node, so that its name and data are requested again."""
        self.nodes.pop(name, None)

    def enter(self, node: int, response: Response) -> str | None:
        """Register a node as its site; return a message for the operator, if any."""
        name = response.site
        before = self.nodes.get(name)
        self.retries.pop(node, None)
        self.nodes[name], self.hellos[name] = node, response
        return None if before in (None, node) else f"site {name} has come back as another node ({before} -> {node})"

    def complete(self, present: list[int]) -> bool:
        """Return whether every site has joined or was refused."""
        refused_sites = {failure.site for failure in self.refused.values()}
        return all(k in present or name in refused_sites for k, name in enumerate(self.sites))

    def present(self, connected: set[int]) -> list[int]:
        """Return the numbers of the sites that are connected and hold training data."""
        return [
            k
            for k, name in enumerate(self.sites)
            if self.nodes.get(name) in connected and self.hellos[name].samples > 0
        ]

    def tests(self, client: int) -> int:
        """Return the number of test samples of a site."""
        hello = self.hellos.get(self.sites[client])
        return hello.tests if hello else 0

    def validations(self, client: int) -> int:
        """Return the number of validation samples of a site."""
        hello = self.hellos.get(self.sites[client])
        return hello.validations if hello else 0
