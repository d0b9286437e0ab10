"""Batches of samples, and what a model returns for one."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

PARTS = ("extractor", "projection", "classifier")  # the named parts of every model, in order


class Batch(NamedTuple):
    """Samples of one client: the last batch of an epoch is topped up with rows of weight 0."""

    x: Tensor  # inputs, augmented and normalized
    y: Tensor  # labels
    weight: Tensor  # 1 for a sample, 0 for padding
    rows: Tensor  # where they stand in the pool
    key: Tensor  # one random key a sample, for further views of it


class Output(NamedTuple):
    """What a model says of a batch."""

    h: Tensor  # the extractor's features
    z: Tensor  # the classifier's input (the projected features)
    logits: Tensor
