"""Partitions of a data set over clients.

Every sample goes to exactly one client. Random numbers come from numpy's `RandomState`, whose streams are frozen, so a
seed gives the same partition on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.components.parameters import Checked, check
from fedhead.core.components.ranges import Above, AtLeast
from fedhead.core.system.errors import BadInput, require
from fedhead.core.training import random
from fedhead.data.partitions.allocation import Indices, apportion, assign_samples, log_gamma, softmax


@dataclass(frozen=True)
class Partition(Checked):
    """Base class of rules that distribute samples over clients."""

    def split(self, y: NDArray[Any], classes: int, clients: int, seed: int) -> list[Indices]:
        """Distribute samples over clients.

        Args:
            y: Labels, [N]; other targets, [N, T].
            classes: Number of classes.
            clients: Number of clients.
            seed: Seed of the partition.

        Returns:
            The sorted indices of each client; every sample belongs to exactly one client.

        Raises:
            BadInput: If the arguments are invalid, or the rule does not assign every sample to exactly one client.
        """
        y = np.asarray(y)
        check("clients", clients, Annotated[int, AtLeast(1)])
        samples = len(y)
        require(clients <= samples, f"clients: {clients} clients can't share {samples} samples; use at most {samples}")
        if y.dtype.kind != "f" and (y.min() < 0 or y.max() >= classes):  # floats are targets of a regression
            raise BadInput(f"labels must lie in 0 … {classes - 1}, they span {y.min()} … {y.max()}")
        rng = self.generator(seed)
        labels = y.copy()  # protect the data from rules that modify their labels
        return checked_indices(self.assign(labels, classes, clients, rng), len(y), clients, self)

    def generator(self, seed: int) -> np.random.RandomState:
        """Return the random generator of a partition's seed.

        Args:
            seed: The seed.

        Returns:
            The generator that `assign` draws from.
        """
        return np.random.RandomState(random.key(seed, "partition") & 0xFFFFFFFF)

    def assign(self, y: NDArray[Any], classes: int, clients: int, rng: np.random.RandomState) -> list[Indices]:
        """Assign samples to clients; the arguments are already checked.

        Args:
            y: Labels, [N].
            classes: Number of classes.
            clients: Number of clients.
            rng: Seeded random generator.

        Returns:
            The indices of each client, in any order.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class IID(Partition):
    """Samples shuffled and split evenly, so that all clients have the same distribution."""

    def assign(self, y: NDArray[Any], classes: int, clients: int, rng: np.random.RandomState) -> list[Indices]:
        """Assign shuffled samples in equal parts."""
        return [np.asarray(indices) for indices in np.array_split(rng.permutation(len(y)), clients)]

    def __str__(self) -> str:
        return "iid"


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class distributed over clients by shares drawn from Dir(α), as in FedETF; without cap and minimum."""

    alpha: Annotated[float, Above(0)]  # α, concentration; smaller values give fewer clients per class

    def assign(self, y: NDArray[Any], classes: int, clients: int, rng: np.random.RandomState) -> list[Indices]:
        """Assign each class by shares drawn from Dir(α)."""
        share = softmax(log_gamma(rng, self.alpha, (classes, clients)))
        sizes = np.bincount(y, minlength=classes)
        # round the cumulative shares; the last client gets the rest of each class
        cuts = np.minimum(np.cumsum(np.rint(share * sizes[:, None]), axis=1).astype(np.int64), sizes[:, None])
        cuts[:, -1] = sizes
        return assign_samples(y, np.diff(cuts, axis=1, prepend=0).T, rng)

    def __str__(self) -> str:
        return f"dirichlet({self.alpha!r})"


@dataclass(frozen=True)
class CappedDirichlet(Partition):
    """Dir(α) per class, with a cap of N/K samples per client and a minimum (MOON, CCVR)."""

    alpha: Annotated[float, Above(0)]  # α
    # minimum number of samples per client; the partition is redrawn until it is reached
    minimum: Annotated[int, AtLeast(0)] = 10
    tries: Annotated[int, AtLeast(1)] = 20_000  # maximum number of draws

    def assign(self, y: NDArray[Any], classes: int, clients: int, rng: np.random.RandomState) -> list[Indices]:
        """Redraw the partition until every client has the minimum."""
        require(
            self.minimum * clients <= len(y),
            f"partition {self}: {clients} clients with at least {self.minimum} samples each need "
            f"{self.minimum * clients} samples, there are {len(y)}; use fewer clients or a smaller minimum",
        )
        sizes = np.bincount(y, minlength=classes)
        draws_at_once = 100  # draws at a time; fixed, since it determines the random stream
        for _ in range(math.ceil(self.tries / draws_at_once)):
            counts = self._draw(sizes, clients, draws_at_once, rng)
            enough = np.flatnonzero(counts.sum(axis=2).min(axis=1) >= self.minimum)
            if enough.size:
                return assign_samples(y, counts[enough[0]], rng)
        raise BadInput(
            f"partition {self}: {self.tries} draws left some of the {clients} clients under {self.minimum} samples; "
            f"use a larger alpha, fewer clients, or dirichlet({self.alpha!r}) without a minimum"
        )

    def _draw(self, sizes: Indices, clients: int, draws: int, rng: np.random.RandomState) -> Indices:
        """Return the counts [draws, clients, classes] of several draws at once."""
        counts = np.zeros((draws, clients, len(sizes)), np.int64)
        totals = np.zeros((draws, clients), np.int64)
        for c in np.flatnonzero(sizes):
            # exclude full clients before normalizing the shares; at least one client is never full
            log = np.where(totals < sizes.sum() / clients, log_gamma(rng, self.alpha, (draws, clients)), -np.inf)
            cuts = (np.cumsum(softmax(log), axis=1) * sizes[c]).astype(np.int64)
            cuts[:, -1] = sizes[c]
            counts[:, :, c] = np.diff(cuts, axis=1, prepend=0)
            totals += counts[:, :, c]
        return counts

    def __str__(self) -> str:
        minimum = "" if self.minimum == 10 else f", minimum={self.minimum}"
        return f"dirichlet({self.alpha!r}, capped{minimum})"


@dataclass(frozen=True)
class EqualDirichlet(Partition):
    """Clients of equal size, each with class proportions drawn from Dir(α), as FedClassAvg's text describes.

    The clients are filled one after the other in random order. When a class is used up, the proportions of the other
    classes are normalized again (Hsu et al., 2019), so the last clients deviate from the proportions drawn for them.
    """

    alpha: Annotated[float, Above(0)]  # α

    def assign(self, y: NDArray[Any], classes: int, clients: int, rng: np.random.RandomState) -> list[Indices]:
        """Assign each client samples by its class distribution."""
        left = np.bincount(y, minlength=classes)
        log = log_gamma(rng, self.alpha, (clients, classes))
        quota = np.full(clients, len(y) // clients)
        quota[: len(y) % clients] += 1
        counts = np.zeros((clients, classes), np.int64)
        for k in rng.permutation(clients):
            while (open_ := quota[k] - counts[k].sum()) > 0:  # every pass fills the client's quota or uses up a class
                share = softmax(np.where(left > 0, log[k], -np.inf))
                take = np.minimum(apportion(share, int(open_)), left)
                counts[k] += take
                left -= take
        return assign_samples(y, counts, rng)

    def __str__(self) -> str:
        return f"dirichlet({self.alpha!r}, equal)"


@dataclass(frozen=True)
class Skewed(Partition):
    """A few random classes per client; the samples of each class are split evenly over its clients.

    Classes are drawn at random from those with the fewest clients so far, so that every class has a client. If classes
    are balanced and K clients × c classes is a multiple of the number of classes, each client gets N/(cK) samples of
    each of its c classes (FedClassAvg).
    """

    per_client: Annotated[int, AtLeast(1)]  # c, number of classes per client

    def check(self, total: int, clients: int) -> None:
        """Raise `BadInput` if the data has fewer classes than each client needs, or some class would have no client."""
        require(self.per_client <= total, f"partition {self}: the data holds only {total} classes; use skewed({total})")
        if self.per_client * clients < total:
            need = math.ceil(total / clients)
            raise BadInput(
                f"partition {self}: {clients} clients with {self.per_client} of {total} classes would leave "
                f"classes without a client; use skewed({need}) or more clients"
            )

    def assign(self, y: NDArray[Any], classes: int, clients: int, rng: np.random.RandomState) -> list[Indices]:
        """Assign classes to clients and split each class evenly over its clients."""
        sizes = np.bincount(y, minlength=classes)
        present = np.flatnonzero(sizes)
        self.check(len(present), clients)
        holds = np.zeros((clients, len(present)), bool)
        for k in range(clients):
            order = np.lexsort((rng.random_sample(len(present)), holds.sum(axis=0)))  # fewest clients first
            holds[k, order[: self.per_client]] = True
        counts = np.zeros((clients, classes), np.int64)
        for column, c in zip(holds.T, present, strict=True):
            holders = rng.permutation(np.flatnonzero(column))  # random order decides which clients get the remainder
            counts[holders, c] = sizes[c] // len(holders)
            counts[holders[: sizes[c] % len(holders)], c] += 1
        return assign_samples(y, counts, rng)

    def __str__(self) -> str:
        return f"skewed({self.per_client})"


@dataclass(frozen=True)
class Natural(Partition):
    """Natural clients of the data: groups, one folder per client, or an array of a file.

    `Federation` reads the clients from the data, so this partition assigns nothing.
    """

    column: str = "site"  # array of an .npz file with the client of each sample

    def assign(self, y: NDArray[Any], classes: int, clients: int, rng: np.random.RandomState) -> list[Indices]:
        """Raise `BadInput`: natural clients are read from the data."""
        raise BadInput(f"partition {self}: this data names no clients; use iid, dirichlet(alpha) or skewed(2)")

    def __str__(self) -> str:
        return "natural" if self.column == "site" else f"natural({self.column})"


def checked_indices(assigned: Sequence[Any], samples: int, clients: int, rule: Partition) -> list[Indices]:
    """Return the sorted indices of each client.

    Raises:
        BadInput: If not every sample was assigned to exactly one client.
    """
    if len(assigned) != clients:
        raise BadInput(f"partition {rule}: it assigned indices to {len(assigned)} clients, there are {clients}")
    indices = [np.sort(np.asarray(ids)) for ids in assigned]
    odd = next((k for k, ids in enumerate(indices) if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu")), None)
    require(odd is None, f"partition {rule}: the indices of client {odd} are no list of whole numbers")
    every = np.concatenate(indices).astype(np.int64)
    if len(every) and (every.min() < 0 or every.max() >= samples):
        raise BadInput(
            f"partition {rule}: indices must lie in 0 … {samples - 1}, they span {every.min()} … {every.max()}"
        )
    times = np.bincount(every, minlength=samples)
    if (times != 1).any():
        index = int(np.argmax(times != 1))
        raise BadInput(f"partition {rule}: sample {index} is at {times[index]} clients, every sample must be at one")
    return [ids.astype(np.int64) for ids in indices]
