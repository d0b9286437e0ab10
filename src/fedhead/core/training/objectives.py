"""Objectives: the meaning of a model's outputs, the loss of local training, and the predictions.

| objective | target | outputs | loss |
|---|---|---|---|
| `multiclass` | one of C classes | C logits | softmax cross entropy |
| `binary` | one of 2 classes | 1 logit (second class) | binary cross entropy |
| `multilabel` | 0 or 1 for each of L labels | L logits | binary cross entropy, averaged over the labels |
| `regression` | T numbers | T numbers | squared error, averaged over the numbers |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from fedhead.core.training.losses import cross_entropies, mean

ObjectiveName = Literal["multiclass", "binary", "multilabel", "regression"]
NAMES: tuple[str, ...] = get_args(ObjectiveName)
PER_CLIENT: Literal["balanced_per_client"] = "balanced_per_client"  # class weights from each client's counts


@dataclass(frozen=True)
class Objective(ABC):
    """Objective of training; one of the four in `OBJECTIVES`.

    Args:
        label_smoothing: ε, the share of each target that is spread over all classes, as in
            `torch.nn.functional.cross_entropy`.
        class_weights: Weight of each class; "balanced_per_client": from each client's counts; None: equal weights.
        weights: Class weights as a tensor on the device, unless they are per client.

    Attributes:
        name: Name in recipes and records.
        has_classes: Whether each sample has one class, so that y holds class indices.
    """

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | Literal["balanced_per_client"] | None = None
    weights: Tensor | None = field(default=None, compare=False, repr=False)

    name: ClassVar[str]
    has_classes: ClassVar[bool]

    @property
    def is_plain(self) -> bool:
        """True if the loss is the plain cross entropy, as methods with their own loss assume."""
        return self.name == "multiclass" and self.adjusted is None

    @property
    def adjusted(self) -> str | None:
        """Option that changes the loss: `label_smoothing`, `class_weights` or None."""
        if self.class_weights is not None:
            return "class_weights"
        return "label_smoothing" if self.label_smoothing else None

    @staticmethod
    def outputs(classes: int) -> int:
        """Return the number of model outputs for a number of classes, labels or targets."""
        return classes

    @abstractmethod
    def loss(self, logits: Tensor, y: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        """Compute the loss of local training, the weighted mean over a batch of one client; a pure function.

        Args:
            logits: Outputs of the model, [B, outputs].
            y: Targets, [B, …].
            weight: Weight of each sample, [B]; 0 for padding.
            counts: Samples per class of the client, [C].
        """

    def scores(self, outputs: Tensor) -> Tensor:
        """Return the scores from which metrics are computed; by default the outputs."""
        return outputs

    @abstractmethod
    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        """Compute the loss of each test sample from `scores` in double precision, [..., C] to [...]."""

    @abstractmethod
    def predictions(self, scores: Tensor) -> Tensor:
        """Return predictions from `scores`: classes [...], labels [..., L] or numbers [..., T]."""


class Multiclass(Objective):
    """Classification into C classes with C logits: softmax cross entropy."""

    name = "multiclass"
    has_classes = True

    def loss(self, logits: Tensor, y: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        """Compute the cross entropy; with class weights w it is Σ w_y ℓ / Σ w_y, as in `F.cross_entropy`."""
        of_class = balanced(counts) if self.class_weights == PER_CLIENT else self.weights
        weight, smoothing = weight.to(logits.dtype), self.label_smoothing
        if of_class is None and not smoothing:
            return mean(cross_entropies(logits, y), weight)
        if of_class is None:
            return mean(F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing), weight)
        # written out, since torch's function under vmap does not support different weights per client
        of_class, log_p = of_class.to(logits.dtype), F.log_softmax(logits, dim=-1)
        of_sample = of_class[y]
        hit = -log_p.gather(-1, y.unsqueeze(-1)).squeeze(-1) * of_sample
        values = (1 - smoothing) * hit - smoothing / logits.shape[-1] * (log_p * of_class).sum(-1)
        return (values * weight).sum() / (of_sample * weight).sum().clamp_min(1e-12)

    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        """Compute the cross entropy of each sample."""
        flat = F.cross_entropy(scores.double().flatten(0, -2), y.flatten(), reduction="none")
        return flat.reshape(y.shape)

    def predictions(self, scores: Tensor) -> Tensor:
        """Return the class with the highest score."""
        return scores.argmax(-1)


class Binary(Multiclass):
    """Classification into 2 classes with the logit of the second: binary cross entropy.

    It equals the softmax cross entropy of two classes with the logits 0 and z.
    """

    name = "binary"

    @staticmethod
    def outputs(classes: int) -> int:
        """Return 1, for one logit."""
        return 1

    def loss(self, logits: Tensor, y: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        """Compute the binary cross entropy; class weights and label smoothing apply to both classes."""
        return super().loss(two_scores(logits), y, weight, counts)

    def scores(self, outputs: Tensor) -> Tensor:
        """Return the scores of both classes."""
        return two_scores(outputs)


class Multilabel(Objective):
    """Classification with any of L labels and L logits: binary cross entropy, averaged over the labels."""

    name = "multilabel"
    has_classes = False

    def loss(self, logits: Tensor, y: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        """Compute the binary cross entropy; class weights are `pos_weight` of `binary_cross_entropy_with_logits`."""
        target = y * (1 - self.label_smoothing) + self.label_smoothing / 2
        positive = None if self.weights is None else self.weights.to(logits.dtype)
        values = F.binary_cross_entropy_with_logits(
            logits, target.to(logits.dtype), pos_weight=positive, reduction="none"
        ).mean(-1)
        return mean(values, weight.to(logits.dtype))

    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        """Compute the binary cross entropy of each sample."""
        return F.binary_cross_entropy_with_logits(scores.double(), y.double(), reduction="none").mean(-1)

    def predictions(self, scores: Tensor) -> Tensor:
        """Return the labels whose probability is above one half, as 0 and 1."""
        return (scores > 0).long()


class Regression(Objective):
    """Regression of T numbers with T outputs: squared error, averaged over the numbers."""

    name = "regression"
    has_classes = False

    def loss(self, logits: Tensor, y: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        """Compute the squared error."""
        return mean((logits - y.to(logits.dtype)).square().mean(-1), weight.to(logits.dtype))

    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        """Compute the squared error of each sample."""
        return (scores.double() - y.double()).square().mean(-1)

    def predictions(self, scores: Tensor) -> Tensor:
        """Return the outputs unchanged."""
        return scores


OBJECTIVES: Mapping[str, type[Objective]] = MappingProxyType(
    {kind.name: kind for kind in (Multiclass, Binary, Multilabel, Regression)}
)


def two_scores(logit: Tensor) -> Tensor:
    """Return the scores of two classes, [..., 2], from the logit of the second, [..., 1]."""
    return torch.cat([torch.zeros_like(logit), logit], dim=-1)


def balanced(counts: Tensor) -> Tensor:
    """Return class weights that balance the classes with samples, [C].

    As scikit-learn's "balanced": n / (K n_c) with K the number of classes with samples; 0 for the others.

    >>> balanced(torch.tensor([6.0, 2.0, 0.0]))
    tensor([0.6667, 2.0000, 0.0000])
    """
    present = counts > 0
    weights = counts.sum() / (present.sum().clamp_min(1) * counts.clamp_min(1))
    return torch.where(present, weights, 0.0)
