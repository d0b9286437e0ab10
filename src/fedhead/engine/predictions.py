"""What a model says of test samples: scores on the device, and all that metrics are computed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.batch import Batch
from fedhead.data.pool import Pool

Confusion = NDArray[np.int64]  # [true class, predicted class], in samples


@dataclass(frozen=True)
class Predictions:
    """The classes and scores that a model gives to test samples; tensors stay on its device.

    The properties that scikit-learn's functions have as arguments (`y_true`, `y_pred`, `y_proba`, `y_score`) are numpy
    arrays, those of probabilities in double precision.

    Args:
        y: Labels, [N].
        predicted: The class with the highest score, [N].
        losses: The cross entropy of each sample in double precision, [N].
        classes: Number of classes.
        scores: The scores of the classes, [N, C]; None where no metric needs them.
    """

    y: Tensor
    predicted: Tensor
    losses: Tensor
    classes: int
    scores: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def confusion(self) -> Confusion:
        """Samples by true and predicted class, [C, C]."""
        places = (self.y * self.classes + self.predicted).bincount(minlength=self.classes**2)
        return np.asarray(places.cpu().numpy().reshape(self.classes, self.classes), np.int64)

    @cached_property
    def log_probabilities(self) -> Tensor:
        """The logarithm of the softmax of the scores in double precision, [N, C]."""
        assert self.scores is not None, "kept wherever a metric needs them"
        return self.scores.double().log_softmax(-1)

    @cached_property
    def probabilities(self) -> Tensor:
        """The softmax of the scores in double precision, [N, C]."""
        return self.log_probabilities.exp()

    @cached_property
    def y_true(self) -> NDArray[np.int64]:
        """Labels, [N]."""
        return np.asarray(self.y.cpu().numpy(), np.int64)

    @cached_property
    def y_pred(self) -> NDArray[np.int64]:
        """Predicted classes, [N]."""
        return np.asarray(self.predicted.cpu().numpy(), np.int64)

    @cached_property
    def y_proba(self) -> NDArray[np.float64]:
        """Probabilities of the classes, [N, C]."""
        return np.asarray(self.probabilities.cpu().numpy(), np.float64)

    @property
    def y_score(self) -> NDArray[np.float64]:
        """Probabilities as `roc_auc_score` takes them: [N, C], of two classes those of the second one, [N]."""
        return np.asarray(self.y_proba[:, 1] if self.classes == 2 else self.y_proba, np.float64)


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Return the cross entropy of each sample in double precision, [..., C] and [...] to [...]."""
    flat = F.cross_entropy(scores.double().flatten(0, -2), y.flatten(), reduction="none")
    return flat.reshape(y.shape)


@torch.no_grad()
def predict(
    scores: Callable[[Any], Tensor], pool: Pool, classes: int, keep_scores: bool = False, batch: int = 1024
) -> Predictions:
    """Test a model on all samples of a pool.

    Args:
        scores: Returns the scores of a batch of inputs, [B, C].
        pool: Test samples.
        classes: Number of classes.
        keep_scores: Whether metrics need the scores themselves.
        batch: Samples at a time.
    """
    predicted, losses, kept = [], [], []
    for part in torch.split(torch.arange(len(pool), device=pool.device), batch):
        found = scores(pool.view(part, None))
        predicted.append(found.argmax(-1))
        losses.append(cross_entropy(found, pool.y[part]))
        if keep_scores:
            kept.append(found)
    if not predicted:
        nothing = torch.zeros(0, dtype=torch.float64, device=pool.device)
        return Predictions(pool.y, nothing.long(), nothing, classes, nothing.reshape(0, classes))
    return Predictions(
        pool.y, torch.cat(predicted), torch.cat(losses), classes, torch.cat(kept) if keep_scores else None
    )


# -- of the clients' own models -----------------------------------------------------------------------
def summarize(scores: Tensor, batch: Batch) -> Tensor:
    """Return the predicted class and the loss of each sample, [..., 2], for `fedhead.executors.forward.personal`."""
    return torch.stack([scores.argmax(-1).double(), cross_entropy(scores, batch.y)], -1)


def client_predictions(found: Tensor, y: Tensor, classes: int, scored: bool) -> Predictions:
    """Return one client's predictions.

    Args:
        found: Scores [n, C], or what `summarize` returned for each sample, [n, 2].
        y: Labels, [n].
        classes: Number of classes.
        scored: Whether `found` is the scores.
    """
    if not len(y):
        nothing = torch.zeros(0, dtype=torch.float64, device=y.device)
        return Predictions(y, nothing.long(), nothing, classes, nothing.reshape(0, classes))
    if scored:
        return Predictions(y, found.argmax(-1), cross_entropy(found, y), classes, found)
    return Predictions(y, found[:, 0].long(), found[:, 1], classes)
