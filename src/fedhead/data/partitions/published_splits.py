"""Exact splits of papers' published code, for the same seeds.

Results differ more between splits of the same α than between methods, so comparisons need the published splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.components.ranges import Above
from fedhead.core.system.errors import BadInput
from fedhead.data.partitions.allocation import Indices
from fedhead.data.partitions.partition import CappedDirichlet, Partition


@dataclass(frozen=True)
class PublishedSplit(Partition):
    """Base of partitions that draw the random numbers of NumPy after `np.random.seed(seed)`."""

    alpha: Annotated[float, Above(0)]  # α

    def generator(self, seed: int) -> np.random.RandomState:
        """Return a generator that draws the same numbers as `np.random` after `np.random.seed(seed)`."""
        return np.random.RandomState(seed & 0xFFFFFFFF)


@dataclass(frozen=True)
class MoonDirichlet(PublishedSplit):
    """Splits of MOON's public code, by the rule of `CappedDirichlet`."""

    def assign(self, y: NDArray[Any], classes: int, clients: int, rng: np.random.RandomState) -> list[Indices]:
        """Assign samples with the random stream of MOON's code."""
        for _ in range(1000):
            parts: list[list[int]] = [[] for _ in range(clients)]
            for c in np.unique(y):
                indices = np.flatnonzero(y == c)
                rng.shuffle(indices)  # before drawing shares, to match the published random stream
                share = rng.dirichlet(np.repeat(self.alpha, clients))
                share = share * np.array([len(part) < len(y) / clients for part in parts])
                if not share.sum() > 0:  # or NaN: for tiny α all of NumPy's shares may be 0
                    break
                cuts = (np.cumsum(share / share.sum()) * len(indices)).astype(int)[:-1]
                for part, new in zip(parts, np.split(indices, cuts), strict=True):
                    part.extend(new.tolist())
            else:
                if min(map(len, parts)) >= CappedDirichlet.minimum:
                    return [np.asarray(part) for part in parts]
        problem = f"1000 draws left some of the {clients} clients under 10 samples"
        raise BadInput(f"partition {self}: {problem}; use a larger alpha")

    def __str__(self) -> str:
        return f"dirichlet({self.alpha!r}, moon)"


@dataclass(frozen=True)
class FedETFDirichlet(PublishedSplit):
    """Splits of FedETF's public code, by the rule of `Dirichlet`."""

    def assign(self, y: NDArray[Any], classes: int, clients: int, rng: np.random.RandomState) -> list[Indices]:
        """Assign samples with the random stream of FedETF's code."""
        by_class = [np.flatnonzero(y == c) for c in range(classes)]
        for indices in by_class:
            rng.shuffle(indices)  # all classes before drawing shares, to match the published random stream
        share = rng.dirichlet(np.repeat(self.alpha, clients), classes)
        if not np.isfinite(share).all():
            raise BadInput(f"partition {self}: NumPy can't draw shares for so small an alpha; use a larger one")
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for indices, mine in zip(by_class, share, strict=True):
            cuts = np.minimum(np.cumsum(np.rint(mine * len(indices)))[:-1].astype(int), len(indices))
            for client, part in zip(parts, np.split(indices, cuts), strict=True):
                client.append(part)
        return [np.concatenate(client) for client in parts]

    def __str__(self) -> str:
        return f"dirichlet({self.alpha!r}, fedetf)"
