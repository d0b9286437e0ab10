"""The batch schedule of local training: which samples a client uses at which step.

Everything is derived from (seed, round, phase, client), so that every executor, every chunk size and every machine
trains on the same batches in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhead.core.training import random


class DrawArguments(NamedTuple):
    """Source of the batches of one client in one phase.

    Attributes:
        n: Number of samples of the client.
        batch_size: Samples per batch.
        epochs: Number of passes over the samples.
        drop_last: Whether to drop an incomplete last batch; it is kept if it is the only one.
        key: Random key, see `phase_key`.
        most: The largest number of steps; None: as many as the epochs take.
    """

    n: int
    batch_size: int
    epochs: int
    drop_last: bool
    key: int
    most: int | None = None


@dataclass(frozen=True)
class BatchSchedule:
    """The batches of one client in one phase."""

    positions: NDArray[np.int64]  # [steps, batch], indices into the client's own list of samples
    weight: NDArray[np.float32]  # [steps, batch], 1 for a sample, 0 for padding
    key: int  # random key for augmentation and dropout

    def __len__(self) -> int:
        return len(self.positions)


def draw_epochs(n: int, batch_size: int, epochs: int, key: int) -> Iterator[BatchSchedule]:
    """Yield batches epoch by epoch, so that the first can be used while others are drawn.

    Args:
        n: Number of samples.
        batch_size: Samples per batch.
        epochs: Number of passes over the samples.
        key: Random key, see `phase_key`.

    >>> parts = list(draw_epochs(5, 2, 3, key=7))
    >>> (at_once,) = draw_all([DrawArguments(5, 2, 3, False, key=7)])
    >>> bool((np.concatenate([part.positions for part in parts]) == at_once.positions).all())
    True
    """
    inside = np.arange(steps_per_epoch(n, batch_size, drop_last=False) * batch_size)
    weight = (inside < n).astype(np.float32).reshape(-1, batch_size)
    for epoch in range(epochs):
        order = random.permutation(random.key(key, epoch), n)
        yield BatchSchedule(order[inside % max(n, 1)].reshape(-1, batch_size), weight, key)


def draw_all(draws: Sequence[DrawArguments]) -> list[BatchSchedule]:
    """Shuffle clients' samples for each epoch and cut them into batches of equal size.

    The last batch of an epoch is padded with the client's own samples at weight 0. Clients with as many samples are
    drawn at once.

    Args:
        draws: What the batches of each client are drawn from.

    Returns:
        The schedule of each client, with `positions` and `weight` of shape [epochs * steps, batch_size].

    >>> draw_all([DrawArguments(5, 2, 1, False, key=0)])[0].weight.tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]
    """
    alike: dict[DrawArguments, list[int]] = {}
    for place, draw in enumerate(draws):
        alike.setdefault(draw._replace(key=0), []).append(place)
    found: dict[int, BatchSchedule] = {}
    for draw, places in alike.items():
        found.update(zip(places, _draw_alike(draw, [draws[place].key for place in places]), strict=True))
    return [found[place] for place in range(len(draws))]


def _draw_alike(draw: DrawArguments, keys: Sequence[int]) -> list[BatchSchedule]:
    """Draw the batches of several clients that differ in their keys alone."""
    n, batch_size, epochs, drop_last, _, most = draw
    steps = steps_per_epoch(n, batch_size, drop_last)
    epochs = epochs if steps else 0
    if most is not None and steps:
        epochs = min(epochs, math.ceil(most / steps))
    size = steps * batch_size
    inside = np.arange(size)
    order = random.permutations([random.key(key, epoch) for key in keys for epoch in range(epochs)], n)
    shape = (epochs * steps, batch_size)
    positions = order[:, inside % max(n, 1)].reshape(len(keys), *shape)
    weight = np.broadcast_to((inside < n).astype(np.float32), (epochs, size)).reshape(shape)
    weight = weight[:most]  # one table for all of them
    return [BatchSchedule(own[:most], weight, key) for own, key in zip(positions, keys, strict=True)]


def batch_tables(
    clients: Sequence[tuple[BatchSchedule, NDArray[np.int64]]],
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """Return the rows and the weights of clients' batches, both [steps, clients, batch], and each client's steps.

    Args:
        clients: The schedule of each client, and the rows in the pool of samples that its positions point to.

    >>> schedule = BatchSchedule(np.array([[1, 0]]), np.ones((1, 2), np.float32), key=0)
    >>> batch_tables([(schedule, np.array([4, 6])), (schedule, np.array([5, 9]))])[0].tolist()
    [[[6, 4], [9, 5]]]
    """
    lengths = np.array([len(schedule) for schedule, _ in clients])
    first = clients[0][0].weight
    steps = int(lengths.max())
    index = np.empty((steps, len(clients), first.shape[1]), np.int32)  # half as many bytes to copy to a GPU
    weight = np.empty(index.shape, np.float32)
    same_weight = all(schedule.weight is first for schedule, _ in clients)  # as where clients have as many samples
    if same_weight:
        weight[:] = first[:, None]
    for i, (schedule, rows) in enumerate(clients):
        own = len(schedule)
        index[:own, i] = rows.take(schedule.positions)  # one client after another is faster than all at once
        index[own:, i] = 0
        if not same_weight:
            weight[:own, i] = schedule.weight
            weight[own:, i] = 0
    return index, weight, lengths


def empty_batches(draw: DrawArguments) -> BatchSchedule:
    """Return a schedule as long as that of `draw_all`, without drawing any samples.

    >>> len(empty_batches(DrawArguments(5, 2, epochs=3, drop_last=False, key=0)))
    9
    """
    empty = np.empty((count_steps(draw), 0))
    return BatchSchedule(empty.astype(np.int64), empty.astype(np.float32), 0)


def steps_per_epoch(n: int, batch_size: int, drop_last: bool) -> int:
    """Return how many steps a pass over the samples takes."""
    if n == 0:
        return 0
    return max(1, n // batch_size) if drop_last else math.ceil(n / batch_size)


def count_steps(draw: DrawArguments) -> int:
    """Return how many steps a schedule of `draw_all` has, without drawing them.

    >>> count_steps(DrawArguments(5, 2, epochs=2, drop_last=False, key=0, most=4))
    4
    """
    steps = draw.epochs * steps_per_epoch(draw.n, draw.batch_size, draw.drop_last)
    return steps if draw.most is None else min(steps, draw.most)


def phase_key(seed: int, round: int, algorithm: str, phase: int, client: int) -> int:
    """Return the random key of one phase of one client in one round.

    Args:
        seed: Seed of the run.
        round: Number of the round.
        algorithm: Name of the method or stage, so that training rounds and later stages draw independently.
        phase: Index of the phase.
        client: Index of the client.
    """
    return random.key(seed, "phase", algorithm, round, phase, client)
