"""The plan of local training: which samples a client sees at which step, and what is drawn for them.

Everything follows from (seed, round, phase, client), so that each executor, each chunk size and each machine
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

    positions: NDArray[np.int64]  # [steps, batch] places in the client's own list of samples
    weight: NDArray[np.float32]  # [steps, batch] 1 for a sample, 0 for padding
    key: int  # from which augmentation and dropout draw

    def __len__(self) -> int:
        return len(self.positions)


def draw_batches(n: int, batch_size: int, epochs: int, drop_last: bool, key: int) -> BatchSchedule:
    """Shuffle a client's `n` samples anew each epoch and cut them into batches of one size.

    The last batch of an epoch is topped up with the client's own samples at weight 0, or left out with
    `drop_last` unless it is the only one.

    >>> draw_batches(5, 2, 1, False, key=0).weight.tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]
    """
    steps = _steps_an_epoch(n, batch_size, drop_last)
    epochs = epochs if steps else 0
    size = steps * batch_size
    order = np.empty((epochs, size), np.int64)
    for epoch in range(epochs):
        order[epoch] = np.resize(random.permutation(random.key(key, epoch), n), size)
    weight = np.broadcast_to((np.arange(size) < n).astype(np.float32), order.shape)
    shape = (epochs * steps, batch_size)
    return BatchSchedule(order.reshape(shape), weight.reshape(shape), key)


def undrawn_batches(n: int, batch_size: int, epochs: int, drop_last: bool) -> BatchSchedule:
    """As many batches as `draw_batches` has, with nothing in them: for work that only asks how many there are."""
    empty = np.empty((epochs * _steps_an_epoch(n, batch_size, drop_last), 0))
    return BatchSchedule(empty.astype(np.int64), empty.astype(np.float32), 0)


def _steps_an_epoch(n: int, batch_size: int, drop_last: bool) -> int:
    if n == 0:
        return 0
    return max(1, n // batch_size) if drop_last else math.ceil(n / batch_size)


def phase_key(seed: int, round: int, algorithm: str, phase: int, client: int) -> int:
    """The key of one client's phase: `algorithm` tells training rounds from the stages after them."""
    return random.key(seed, "phase", algorithm, round, phase, client)
