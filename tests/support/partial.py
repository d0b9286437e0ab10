"""A simulation in which some clients are away."""

from __future__ import annotations

from fedhead.engine.rounds.simulation import Simulation


class Partial(Simulation):
    """Takes what `Simulation` takes; the clients in `absent` take no part."""

    absent: frozenset[int] | set[int] = frozenset()

    def present(self) -> list[int]:
        return [k for k in super().present() if k not in self.absent]
