"""Batch schedule of local training: the samples of each step of a client.

It is derived from (seed, round, phase, client), so all executors, chunk sizes and machines train on the same batches in
the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhead.core.training import random


class DrawArguments(NamedTuple):
    """Parameters of the batches of one client in one phase.

    Attributes:
        n: Number of samples of the client.
        batch_size: Samples per batch.
        epochs: Number of passes over the samples.
        drop_last: Whether to drop an incomplete last batch; it is kept if it is the only one.
        key: Random key, see `phase_key`.
        most: Maximum number of steps; None: no limit.
        multiplier: Noise multiplier of DP-SGD, whose batches are Poisson samples; None: shuffled batches, no noise.
    """

    n: int
    batch_size: int
    epochs: int
    drop_last: bool
    key: int
    most: int | None = None
    multiplier: float | None = None


class Noise(NamedTuple):
    """Noise on the gradients of one client in one phase."""

    multiplier: float  # deviation over the clipping norm
    samples: int  # expected number of samples per step, the divisor of a step's sum


@dataclass(frozen=True)
class BatchSchedule:
    """Batches of one client in one phase."""

    positions: NDArray[np.int64]  # [steps, batch], indices into the client's list of samples
    weight: NDArray[np.float32]  # [steps, batch], 1 for a sample, 0 for padding
    key: int  # random key for augmentation and dropout
    noise: Noise | None = None  # of DP-SGD

    def __len__(self) -> int:
        return len(self.positions)


def draw_epochs(n: int, batch_size: int, epochs: int, key: int) -> Iterator[BatchSchedule]:
    """Yield batches epoch by epoch, so that the first can be used before the others are drawn.

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
    """Shuffle the clients' samples for each epoch and split them into batches of equal size.

    The last batch of an epoch is padded with the client's samples at weight 0. Clients with equal numbers of samples
    are drawn together.

    Args:
        draws: Parameters of each client's batches.

    Returns:
        Schedule of each client, with `positions` and `weight` of shape [epochs * steps, batch_size].

    >>> draw_all([DrawArguments(5, 2, 1, False, key=0)])[0].weight.tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]
    """
    groups: dict[DrawArguments, list[int]] = {}
    for place, draw in enumerate(draws):
        groups.setdefault(draw._replace(key=0), []).append(place)
    schedules: dict[int, BatchSchedule] = {}
    for draw, places in groups.items():
        schedules.update(zip(places, _draw_group(draw, [draws[place].key for place in places]), strict=True))
    return _same_width([schedules[place] for place in range(len(draws))])


def _draw_group(draw: DrawArguments, keys: Sequence[int]) -> list[BatchSchedule]:
    """Draw the batches of clients that differ only in their keys."""
    if draw.multiplier is not None:
        return [_poisson(draw._replace(key=key)) for key in keys]
    n, batch_size, epochs, drop_last, _, most, _ = draw
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
    weight = weight[:most]  # shared by all clients
    return [BatchSchedule(each[:most], weight, key) for each, key in zip(positions, keys, strict=True)]


def _poisson(draw: DrawArguments) -> BatchSchedule:
    """Draw each sample of each step independently of the others."""
    assert draw.multiplier is not None, "batches of DP-SGD"
    keys = [random.key(draw.key, step) for step in range(count_steps(draw))]
    rows = [np.flatnonzero(random.uniforms(key, draw.n) < rate(draw)) for key in keys]
    weight = np.arange(max([1, *map(len, rows)])) < np.array([len(row) for row in rows], np.int64)[:, None]
    positions = np.zeros(weight.shape, np.int64)
    positions[weight] = np.concatenate([*rows, np.zeros(0, np.int64)])
    noise = Noise(draw.multiplier, min(draw.batch_size, draw.n))
    return BatchSchedule(positions, weight.astype(np.float32), draw.key, noise)


def _same_width(schedules: list[BatchSchedule]) -> list[BatchSchedule]:
    """Pad Poisson samples to the largest of them."""
    width = max((each.positions.shape[1] for each in schedules if each.noise is not None), default=0)

    def padded(each: BatchSchedule) -> BatchSchedule:
        pad = ((0, 0), (0, width - each.positions.shape[1]))
        return replace(each, positions=np.pad(each.positions, pad), weight=np.pad(each.weight, pad))

    return [each if each.noise is None else padded(each) for each in schedules]


def rate(draw: DrawArguments) -> float:
    """Return the probability of a sample in a step of DP-SGD."""
    return min(1.0, draw.batch_size / draw.n)


def batch_tables(
    clients: Sequence[tuple[BatchSchedule, NDArray[np.int64]]],
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """Return the sample indices and weights of batches, both [steps, clients, batch], and the steps per client.

    Args:
        clients: Schedule of each client, and the indices of its samples in the pool.

    >>> schedule = BatchSchedule(np.array([[1, 0]]), np.ones((1, 2), np.float32), key=0)
    >>> batch_tables([(schedule, np.array([4, 6])), (schedule, np.array([5, 9]))])[0].tolist()
    [[[6, 4], [9, 5]]]
    """
    lengths = np.array([len(schedule) for schedule, _ in clients])
    first = clients[0][0].weight
    steps = int(lengths.max())
    index = np.empty((steps, len(clients), first.shape[1]), np.int32)  # int32 halves the copy to a GPU
    weight = np.empty(index.shape, np.float32)
    same_weight = all(schedule.weight is first for schedule, _ in clients)  # clients of equal size share one array
    if same_weight:
        weight[:] = first[:, None]
    for i, (schedule, indices) in enumerate(clients):
        length = len(schedule)
        index[:length, i] = indices.take(schedule.positions)  # faster client by client than all at once
        index[length:, i] = 0
        if not same_weight:
            weight[:length, i] = schedule.weight
            weight[length:, i] = 0
    return index, weight, lengths


def empty_batches(draw: DrawArguments) -> BatchSchedule:
    """Return a schedule of the same length as that of `draw_all`, without drawing samples.

    >>> len(empty_batches(DrawArguments(5, 2, epochs=3, drop_last=False, key=0)))
    9
    """
    empty = np.empty((count_steps(draw), 0))
    return BatchSchedule(empty.astype(np.int64), empty.astype(np.float32), 0)


def steps_per_epoch(n: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of steps per epoch."""
    if n == 0:
        return 0
    return max(1, n // batch_size) if drop_last else math.ceil(n / batch_size)


def count_steps(draw: DrawArguments) -> int:
    """Return the number of steps of a schedule of `draw_all`, without drawing it.

    >>> count_steps(DrawArguments(5, 2, epochs=2, drop_last=False, key=0, most=4))
    4
    """
    steps = draw.epochs * steps_per_epoch(draw.n, draw.batch_size, draw.drop_last)
    return steps if draw.most is None else min(steps, draw.most)


def phase_key(seed: int, round: int, algorithm: str, phase: int, client: int) -> int:
    """Return the random key of one phase of one client in one round.

    Args:
        seed: Seed of the run.
        round: Round number.
        algorithm: Name of the method or stage, so that training rounds and later stages draw independently.
        phase: Index of the phase.
        client: Index of the client.
    """
    return random.key(seed, "phase", algorithm, round, phase, client)
