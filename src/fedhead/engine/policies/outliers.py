"""Replies that stand out from the others of their round: what is done with them before anything is aggregated.

A reply stands out if its update is several times as long as the median one of the round, or if its client says that
it has several times as many samples as the median one. Class sums are not measured: they grow with the client's data,
and `Algorithm.check_reply` refuses those that no data has.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.core.components.parameters import Checked
from fedhead.core.components.ranges import AtLeast
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree

Action = Literal["reject", "clip", "drop"]


@dataclass(frozen=True)
class OutlierPolicy(Checked):
    """Policy for replies that stand out, and the limits beyond which they do.

    Args:
        action: `reject`: it counts as a failure of its client, which ends a simulation and leaves a real site out of
            the round; `drop`: the round goes on without it, and without clients whose numbers are not finite any more;
            `clip`: it is scaled down to the limit.
        norm: An update stands out if it is longer than this many times the round's median; None: of any length.
        samples: A client stands out if it has more than this many times the round's median of samples; None: any.
    """

    action: Action
    norm: Annotated[float, AtLeast(1)] | None = 5.0
    samples: Annotated[float, AtLeast(1)] | None = None

    def check(self, method: Method) -> None:
        """Refuse a policy that has nothing to measure.

        Args:
            method: The method whose replies would be measured.

        Raises:
            BadInput: If there is no limit, or nothing that it limits.
        """
        if self.norm is None and self.samples is None:
            raise BadInput(f"outliers: {self.action} has no limit: give norm or samples, such as {self.action}(norm=5)")
        summed = set(method.sums) - set(method.class_rows)
        if self.norm is not None and not summed and not (method.shared and "model" in method.broadcast):
            raise BadInput(
                f"outliers: the clients of {method.name} send no update whose length could be compared: "
                f"write {self.action}(norm=null, samples=20), or leave outliers out"
            )


class Outlier(NamedTuple):
    """Why a reply stands out, and what the policy `clip` makes of it."""

    why: str
    sent: Tree
    samples: float


def find(
    policy: OutlierPolicy, algorithm: Algorithm, server: Tree, sent: Mapping[int, Tree], samples: Mapping[int, float]
) -> dict[int, Outlier]:
    """Return the replies that stand out among those of an exchange, by client.

    Args:
        policy: From where on they do.
        algorithm: The method or stage.
        server: The server's state before the exchange.
        sent: What each client sent, uploads undone.
        samples: How many samples each client says it has.
    """
    found: dict[int, Outlier] = {}

    def enter(k: int, what: str, size: float, median: float, changed: Tree, count: float) -> None:
        why = f"{what} {size:.4g} is {size / median:.3g} times the round's median of {median:.4g}"
        found[k] = Outlier(f"{found[k].why}; {why}" if k in found else why, changed, count)

    for name in _measured(algorithm, server, next(iter(sent.values()))) if policy.norm is not None else ():
        held = None if name in algorithm.sums else server[name]
        lengths = {k: _length(_update(tree[name], held)) for k, tree in sent.items()}
        median = statistics.median(lengths.values())
        for k, length in lengths.items():
            limit = (policy.norm or 0) * median
            if 0 < limit < length:
                before = found[k].sent if k in found else sent[k]
                changed = before.replace({name: _scaled(sent[k][name], held, limit / length)})
                enter(k, f"the norm of its {name}", length, median, changed, samples[k])
    if policy.samples is not None:
        median = statistics.median(samples.values())
        for k, count in samples.items():
            limit = policy.samples * median
            if 0 < limit < count:
                enter(k, "its number of samples", count, median, found[k].sent if k in found else sent[k], limit)
    return found


def _measured(algorithm: Algorithm, server: Tree, sent: Tree) -> list[str]:
    """The entries whose lengths can be compared: those that the server holds too, and sums that are no class sums."""
    names = [name for name, value in sent.items() if isinstance(value, Tree) and name not in algorithm.class_rows]
    return [name for name in names if name in algorithm.sums or isinstance(server.get(name), Tree)]


def _update(sent: Tree, held: Tree | None) -> list[Tensor]:
    return [t if held is None else t - held[name] for name, t in sent.items() if held is None or name in held]


def _scaled(sent: Tree, held: Tree | None, factor: float) -> Tree:
    if held is None:
        return sent * factor
    return sent.replace({name: held[name] + (t - held[name]) * factor for name, t in sent.items() if name in held})


def _length(tensors: list[Tensor]) -> float:
    """In double precision, in which no square of a float32 overflows."""
    return float(sum(float(t.double().square().sum()) for t in tensors) ** 0.5)
