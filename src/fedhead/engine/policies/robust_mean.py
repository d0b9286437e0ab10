"""The mean that an aggregator takes in place of the weighted one, with what it remembers of the round before."""

from __future__ import annotations

from collections.abc import Sequence

from fedhead.aggregators.base import Aggregator
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree

MEMORY = "aggregator"  # the entry of the server's state that holds the updates of the round before


def check(aggregator: Aggregator, method: Method, cohort: int | None = None) -> None:
    """Refuse a method of which an aggregator would protect nothing, or only a part.

    Args:
        aggregator: The aggregator.
        method: The method.
        cohort: How many clients take part in a round; None: not known yet.

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
    if cohort is not None and cohort < aggregator.min_clients():
        raise BadInput(
            f"aggregator {aggregator.name} needs at least {aggregator.min_clients()} clients in a round, {cohort} take "
            "part: raise clients or participation, or lower the aggregator's byzantine"
        )


class RobustMean:
    """The function that `Replies.mean` calls where there is an aggregator.

    Args:
        aggregator: The aggregator.
        server: The server's state before the exchange.
    """

    def __init__(self, aggregator: Aggregator, server: Tree):
        self._aggregator, self._server = aggregator, server
        self._found: dict[str, Tree] = {}  # the updates so far, by the entry's name

    def __call__(self, name: str, sent: Sequence[Tree]) -> Tree:
        """Return the server's entry of a name, moved by what the aggregator makes of the updates."""
        rule, held = self._aggregator, self._server.get(name, Tree())
        if not isinstance(held, Tree):  # a tensor, of which `Replies.mean` makes a tree of one
            held = Tree(value=held)
        old = sent[0].zeros().replace({entry: held[entry] for entry in sent[0] if entry in held})
        memory = self._server.get(MEMORY, {}).get(name)
        self._found[name] = rule.combine([each - old for each in sent], memory if rule.remembers else None)
        return old + self._found[name]

    def remember(self, algorithm: Algorithm, server: Tree) -> Tree:
        """Return the server's new state with what the next round needs; refuses a method that took no mean."""
        if not self._found:
            raise BadInput(
                f"aggregator {self._aggregator.name} has no effect: {algorithm.name} takes no mean with replies.mean(…)"
            )
        return server.replace({MEMORY: Tree(self._found)}) if self._aggregator.remembers else server
