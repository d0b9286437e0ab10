"""Robust mean: replaces the weighted mean by an aggregator, with memory of the previous round."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedhead.aggregators.base import Aggregator
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree

MEMORY = "aggregator"  # entry of the server state with the updates of the previous round


def check(aggregator: Aggregator, method: Method, cohort: int) -> None:
    """Check that an aggregator protects everything that a method aggregates.

    Args:
        aggregator: Aggregator.
        method: Method.
        cohort: Number of clients in a round.

    Raises:
        BadInput: If the two can't be used together, or the cohort is too small.
    """
    if method.sums:
        names = " and ".join(method.sums)
        raise BadInput(
            f"aggregator {aggregator.name}: clients of {method.name} also send {names}, which the server adds up and "
            "no aggregator protects: use a method that averages models alone, or limit outliers instead"
        )
    if not method.shared or "model" not in method.broadcast:
        raise BadInput(
            f"aggregator {aggregator.name}: {method.name} averages no model on the server, so there is nothing for it "
            "to do: leave the aggregator out"
        )
    if cohort < aggregator.quorum():
        raise BadInput(
            f"aggregator {aggregator.name} needs at least {aggregator.quorum()} clients in a round, {cohort} take "
            "part: raise clients or participation, or lower the aggregator's byzantine and mixing"
        )


class RobustMean:
    """Callable that `Replies.mean` uses if the run has an aggregator.

    Args:
        aggregator: Aggregator.
        server: Server state before the exchange.
    """

    def __init__(self, aggregator: Aggregator, server: Tree):
        self.component, self._server = aggregator, server
        self._updates: dict[str, Tree] = {}  # aggregated updates by entry

    def __call__(self, name: str, sent: Sequence[Tree]) -> Tree:
        """Return an entry of the server state plus the aggregated update."""
        rule, current = self.component, self._server.get(name, Tree())
        if not isinstance(current, Tree):  # `Replies.mean` wraps a single tensor in a tree
            current = Tree(value=current)
        # of the server's type: what counts as a buffer is not the client's to say
        old = current._like({entry: current.get(entry, zero) for entry, zero in sent[0].zeros().items()})
        memory = self._server.get(MEMORY, {}).get(name)
        updates = [old.map(torch.rsub, tree) for tree in sent]
        self._updates[name] = rule(updates, memory if rule.remembers else None)
        return old + self._updates[name]

    def remember(self, algorithm: Algorithm, server: Tree) -> Tree:
        """Return the new server state with the aggregator's memory; raise if the method took no mean."""
        if not self._updates:
            raise BadInput(
                f"aggregator {self.component.name} has no effect: {algorithm.name} takes no mean with replies.mean(…)"
            )
        return server.replace({MEMORY: Tree(self._updates)}) if self.component.remembers else server
