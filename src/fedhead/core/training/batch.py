"""Batches of samples, and the outputs of a model for a batch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fedhead.core.tree.inputs import Inputs

PARTS = ("extractor", "projection", "classifier")
"""Names of the parts of every model, in order."""


class Batch(NamedTuple):
    """Batch of samples of one client.

    All batches have the same size: the last batch of an epoch is padded with samples of weight 0.

    Attributes:
        x: Inputs, augmented and normalized, [B, ...]: a tensor, or named tensors.
        y: Labels, [B].
        weight: 1 for a sample, 0 for padding, [B].
        indices: Indices of the samples in the pool, [B].
        key: One random key per sample, for additional views, [B].
    """

    x: Inputs
    y: Tensor
    weight: Tensor
    indices: Tensor
    key: Tensor


class Output(NamedTuple):
    """Outputs of a model for a batch of B samples.

    Attributes:
        h: Features of the extractor, [B, ...].
        z: Projected features, the input of the classifier, [B, d].
        logits: Scores of the classes, [B, C].
    """

    h: Tensor
    z: Tensor
    logits: Tensor
