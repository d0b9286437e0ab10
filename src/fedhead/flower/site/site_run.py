"""Run at a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedhead.algorithm.base import Algorithm
from fedhead.core.system.errors import unknown
from fedhead.engine.clients.clients import Clients
from fedhead.flower.wire.protocol import exchanges
from fedhead.metrics.registry import Metric


@dataclass(frozen=True)
class SiteRun:
    """Run at a site: its client, with its number in the federation, and its metrics."""

    clients: Clients
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """Algorithms of all exchanges, by their labels on the wire."""
        return exchanges(self.clients.method, self.clients.experiment.stages)

    def algorithm(self, name: str) -> Algorithm:
        """Return the algorithm of an exchange, given its label on the wire."""
        if name not in self.algorithms:
            raise unknown("algorithm", name, self.algorithms)
        return self.algorithms[name]
