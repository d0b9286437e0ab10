"""Detection and handling of outlying replies before aggregation.

A reply is an outlier if the norm of its update, or its reported number of samples, is several times the round's
median. Class sums are not measured because they grow with the client's data; `Algorithm.check_reply` rejects
implausible ones.
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
    """Policy for outlying replies: limits, and the action beyond them.

    Args:
        action: `reject`: treat the outlier as a failure of its client, which ends a simulation and excludes a real site
            from the round. `drop`: continue the round without it, and without clients that sent non-finite numbers.
            `clip`: scale it down to the limit.
        norm: Maximum norm of an update, as a multiple of the round's median; None: no limit.
        samples: Maximum number of samples of a client, as a multiple of the round's median; None: no limit.
    """

    action: Action
    norm: Annotated[float, AtLeast(1)] | None = 5.0
    samples: Annotated[float, AtLeast(1)] | None = None

    def check(self, method: Method) -> None:
        """Check that the policy has a limit and applies to a method.

        Args:
            method: Method of the run.

        Raises:
            BadInput: If no limit is given, or if the method's replies have nothing to compare.
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
    """Reason why a reply is an outlier, and its clipped version."""

    why: str
    sent: Tree
    samples: float


def find(
    policy: OutlierPolicy, algorithm: Algorithm, server: Tree, sent: Mapping[int, Tree], samples: Mapping[int, float]
) -> dict[int, Outlier]:
    """Return the outlying replies of an exchange by client.

    Args:
        policy: Policy with the limits.
        algorithm: Method or stage.
        server: Server state before the exchange.
        sent: Sent tree of each client, with uploads undone.
        samples: Reported number of samples of each client.
    """
    outliers: dict[int, Outlier] = {}

    def add(k: int, quantity: str, size: float, median: float, changed: Tree, count: float) -> None:
        why = f"{quantity} {size:.4g} is {size / median:.3g} times the round's median of {median:.4g}"
        outliers[k] = Outlier(f"{outliers[k].why}; {why}" if k in outliers else why, changed, count)

    for name in _measured(algorithm, server, next(iter(sent.values()))) if policy.norm is not None else ():
        reference = None if name in algorithm.sums else server[name]
        lengths = {k: _length(_update(tree[name], reference)) for k, tree in sent.items()}
        median = statistics.median(lengths.values())
        for k, length in lengths.items():
            limit = (policy.norm or 0) * median
            if 0 < limit < length:
                before = outliers[k].sent if k in outliers else sent[k]
                changed = before.replace({name: _scaled(sent[k][name], reference, limit / length)})
                add(k, f"the norm of its {name}", length, median, changed, samples[k])
    if policy.samples is not None:
        median = statistics.median(samples.values())
        for k, count in samples.items():
            limit = policy.samples * median
            if 0 < limit < count:
                add(k, "its number of samples", count, median, outliers[k].sent if k in outliers else sent[k], limit)
    return outliers


def _measured(algorithm: Algorithm, server: Tree, sent: Tree) -> list[str]:
    """Return the entries whose norms can be compared: entries of the server state, and sums except class sums."""
    names = [name for name, value in sent.items() if isinstance(value, Tree) and name not in algorithm.class_rows]
    return [name for name in names if name in algorithm.sums or isinstance(server.get(name), Tree)]


def _update(sent: Tree, old: Tree | None) -> list[Tensor]:
    """Return the tensors whose norm is compared: parameters, without BatchNorm's running statistics."""
    return list(sent.values()) if old is None else [sent[name] - t for name, t in old.vector().items() if name in sent]


def _scaled(sent: Tree, old: Tree | None, factor: float) -> Tree:
    if old is None:
        return sent * factor
    return sent.replace({name: old[name] + (t - old[name]) * factor for name, t in sent.items() if name in old})


def _length(tensors: list[Tensor]) -> float:
    """Return the norm, in double precision so that squares of float32 numbers don't overflow."""
    return float(sum(float(t.double().square().sum()) for t in tensors) ** 0.5)
