"""Batches of samples, and the outputs of a model for a batch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

PARTS = ("extractor", "projection", "classifier")  # the named parts of every model, in order


class Batch(NamedTuple):
    """One batch of samples of one client.

    All batches have the same size: the last batch of an epoch is padded with rows of weight 0.
    """

    x: Tensor  # inputs, augmented and normalized
    y: Tensor  # labels
    weight: Tensor  # 1 for a sample, 0 for padding
    rows: Tensor  # indices of the samples in the pool
    key: Tensor  # one random key per sample, to draw further views


class Output(NamedTuple):
    """The outputs of a model for a batch of B samples."""

    h: Tensor  # features of the extractor, [B, ...]
    z: Tensor  # projected features, the classifier's input, [B, d]
    logits: Tensor  # [B, C]
