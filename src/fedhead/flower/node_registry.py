"""The nodes: which node of Flower's is which site, and what each site said of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedhead.flower.messaging import Failure
from fedhead.flower.protocol import Response


@dataclass
class NodeRegistry:
    """The sites by name; a node is only their present address, and changes when a site is started anew."""

    sites: list[str]
    nodes: dict[str, int] = field(default_factory=dict)  # a site's node
    hellos: dict[str, Response] = field(default_factory=dict)  # what a site said when it came
    refused: dict[int, Failure] = field(default_factory=dict)  # nodes that can't take part, and why

    def unknown_nodes(self, connected: set[int]) -> list[int]:
        """Connected nodes that have not been asked who they are."""
        self.refused = {node: why for node, why in self.refused.items() if node in connected}  # may come back fixed
        known = set(self.nodes.values()) | self.refused.keys()
        return sorted(connected - known)

    def enter(self, node: int, response: Response) -> str | None:
        """Enter a node as the site that it says it is; returns what to tell the operator, if anything."""
        name = response.site
        before = self.nodes.get(name)
        self.nodes[name], self.hellos[name] = node, response
        return None if before in (None, node) else f"site {name} has come back as another node ({before} -> {node})"

    def complete(self, present: list[int]) -> bool:
        """Whether nobody else is to be waited for: each site is there, or has said why it can't be."""
        named = {failure.site for failure in self.refused.values()}
        return all(k in present or name in named for k, name in enumerate(self.sites))

    def present(self, connected: set[int]) -> list[int]:
        """The numbers of the sites that are connected and hold training data."""
        return [
            k
            for k, name in enumerate(self.sites)
            if self.nodes.get(name) in connected and self.hellos[name].samples > 0
        ]

    def tests(self, client: int) -> int:
        """Return how many test samples a site has."""
        hello = self.hellos.get(self.sites[client])
        return hello.tests if hello else 0
