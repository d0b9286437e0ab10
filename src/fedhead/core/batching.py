"""The batch schedule of local training: which samples a client uses at which step.

Everything is derived from (seed, round, phase, client), so that every executor, every chunk size and every machine
trains on the same batches in the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhead.core import random


@dataclass(frozen=True)
class BatchSchedule:
    """The batches of one client in one phase."""

    positions: NDArray[np.int64]  # [steps, batch], indices into the client's own list of samples
    weight: NDArray[np.float32]  # [steps, batch], 1 for a sample, 0 for padding
    key: int  # random key for augmentation and dropout

    def __len__(self) -> int:
        return len(self.positions)


def draw_batches(
    n: int, batch_size: int, epochs: int, drop_last: bool, key: int, most: int | None = None
) -> BatchSchedule:
    """Shuffle a client's samples anew for each epoch and cut them into batches of equal size.

    The last batch of an epoch is padded with the client's own samples at weight 0.

    Args:
        n: Number of samples of the client.
        batch_size: Samples per batch.
        epochs: Number of passes over the samples.
        drop_last: Whether to drop an incomplete last batch; it is kept if it is the only one.
        key: Random key, see `phase_key`.
        most: The largest number of steps; None: as many as the epochs take.

    Returns:
        The schedule, with `positions` and `weight` of shape [epochs * steps, batch_size].

    >>> draw_batches(5, 2, 1, False, key=0).weight.tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]
    """
    steps = steps_per_epoch(n, batch_size, drop_last)
    epochs = epochs if steps else 0
    if most is not None and steps:
        epochs = min(epochs, math.ceil(most / steps))
    size = steps * batch_size
    order = np.empty((epochs, size), np.int64)
    for epoch in range(epochs):
        order[epoch] = np.resize(random.permutation(random.key(key, epoch), n), size)
    weight = np.broadcast_to((np.arange(size) < n).astype(np.float32), order.shape)
    shape = (epochs * steps, batch_size)
    return BatchSchedule(order.reshape(shape)[:most], weight.reshape(shape)[:most], key)


def empty_batches(n: int, batch_size: int, epochs: int, drop_last: bool, most: int | None = None) -> BatchSchedule:
    """Return a schedule as long as that of `draw_batches`, without drawing any samples.

    For phases that only need to know the number of steps.
    """
    empty = np.empty((epochs * steps_per_epoch(n, batch_size, drop_last), 0))[:most]
    return BatchSchedule(empty.astype(np.int64), empty.astype(np.float32), 0)


def steps_per_epoch(n: int, batch_size: int, drop_last: bool) -> int:
    """Return how many steps a pass over the samples takes."""
    if n == 0:
        return 0
    return max(1, n // batch_size) if drop_last else math.ceil(n / batch_size)


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
