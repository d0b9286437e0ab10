"""Predictions of a model on test samples, the input of metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Batch
from fedhead.core.training.objectives import OBJECTIVES, Multiclass, Objective
from fedhead.data.pool import Pool
from fedhead.executors.stack.map_clients import remember_fitting, retry_with_smaller_batches

MULTICLASS = Multiclass()
Confusion = NDArray[np.int64]  # [true class, predicted class], in samples


@dataclass(frozen=True)
class Predictions:
    """Predictions and scores of test samples; tensors stay on the model's device.

    The properties named like scikit-learn's arguments (`y_true`, `y_pred`, `y_proba`, `y_score`) are numpy arrays, with
    probabilities in double precision.

    Args:
        y: Labels, [N]; for multilabel and regression, [N, C].
        predicted: Class with the highest score, [N]; for multilabel 0 or 1, and for regression numbers, [N, C].
        losses: Loss of each sample in double precision, [N].
        classes: Number of classes, labels or regression targets.
        scores: Scores of the classes, [N, C], also for a binary objective; None if no metric needs them.
        objective: Name of the run's objective.
    """

    y: Tensor
    predicted: Tensor
    losses: Tensor
    classes: int
    scores: Tensor | None = None
    objective: str = "multiclass"

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def confusion(self) -> Confusion:
        """Confusion matrix, [true class, predicted class].

        Raises:
            BadInput: If the objective has no classes.
        """
        if not OBJECTIVES[self.objective].has_classes:
            raise BadInput(f"a confusion matrix needs classes, objective={self.objective} has none")
        counts = (self.y * self.classes + self.predicted).bincount(minlength=self.classes**2)
        return np.asarray(counts.cpu().numpy().reshape(self.classes, self.classes), np.int64)

    @property
    def correct(self) -> int | None:
        """Number of correct predictions; of multilabel samples, those with only correct labels; None for regression."""
        if self.objective == "regression":
            return None
        equal = self.predicted == self.y
        return int((equal.all(-1) if self.objective == "multilabel" else equal).sum())

    @cached_property
    def loss(self) -> float:
        """Mean loss."""
        return float(self.losses.mean())

    @cached_property
    def probabilities(self) -> Tensor:
        """Softmax of the scores (sigmoid for multilabel) in double precision, [N, C]."""
        assert self.scores is not None, "kept if a metric needs them"
        if self.objective == "regression":
            raise BadInput("numbers have no probabilities, objective=regression: use y_true and y_pred")
        scores = self.scores.double()
        return (F.logsigmoid(scores) if self.objective == "multilabel" else scores.log_softmax(-1)).exp()

    @cached_property
    def y_true(self) -> NDArray[Any]:
        """Labels, [N]; multilabel, [N, C]; regression, [N], or [N, C] with several targets."""
        return self._array(self.y)

    @cached_property
    def y_pred(self) -> NDArray[Any]:
        """Predictions, with the shape of `y_true`."""
        return self._array(self.predicted)

    def _array(self, values: Tensor) -> NDArray[Any]:
        if self.objective != "regression":
            return np.asarray(values.cpu().numpy(), np.int64)
        array = np.asarray(values.cpu().numpy(), np.float64)
        return array[:, 0] if self.classes == 1 else array

    @cached_property
    def y_proba(self) -> NDArray[np.float64]:
        """Probabilities of the classes, [N, C]."""
        return np.asarray(self.probabilities.cpu().numpy(), np.float64)

    @property
    def y_score(self) -> NDArray[np.float64]:
        """Probabilities in the format of `roc_auc_score`: [N, C]; for two classes those of the second, [N]."""
        second = self.classes == 2 and self.objective != "multilabel"
        return np.asarray(self.y_proba[:, 1] if second else self.y_proba, np.float64)


def of_outputs(outputs: Tensor, y: Tensor, classes: int, objective: Objective) -> Predictions:
    """Convert a model's outputs [N, …] for samples with targets y to predictions."""
    scores = objective.scores(outputs)
    return Predictions(y, objective.predictions(scores), objective.losses(scores, y), classes, scores, objective.name)


@torch.no_grad()
def predict(
    outputs: Callable[[Any], Tensor],
    pool: Pool,
    classes: int,
    keep_scores: bool = False,
    batch: int = 1024,
    objective: Objective = MULTICLASS,
) -> Predictions:
    """Return a model's predictions for all samples of a pool.

    Args:
        outputs: Function from a batch of inputs to the model's outputs, [B, C].
        pool: Test samples.
        classes: Number of classes, labels or regression targets.
        keep_scores: Whether to store the scores for metrics that need them.
        batch: Batch size; reduced permanently if memory runs out.
        objective: Objective of the run.
    """
    if not len(pool):
        return _no_predictions(pool.y, classes, objective)

    def predict_batch(indices: Tensor) -> Predictions:
        predictions = of_outputs(outputs(pool.view(indices, None)), pool.y[indices], classes, objective)
        return predictions if keep_scores else replace(predictions, scores=None)

    def run(samples: int) -> list[Predictions]:
        return [predict_batch(part) for part in torch.split(torch.arange(len(pool), device=pool.device), samples)]

    parts, fits = retry_with_smaller_batches(run, batch, len(pool), "testing a model")
    if fits < batch:
        remember_fitting(pool, fits)
    scores = torch.cat([part.scores for part in parts if part.scores is not None]) if keep_scores else None
    predicted, losses = torch.cat([part.predicted for part in parts]), torch.cat([part.losses for part in parts])
    return Predictions(pool.y, predicted, losses, classes, scores, objective.name)


def _no_predictions(y: Tensor, classes: int, objective: Objective) -> Predictions:
    empty = torch.zeros(0, dtype=torch.float64, device=y.device)
    return Predictions(y, empty.long(), empty, classes, empty.reshape(0, classes), objective.name)


# -- personal models of the clients ------------------------------------------------------------------
def summarize(outputs: Tensor, batch: Batch, objective: Objective = MULTICLASS) -> Tensor:
    """Return predicted class and loss of each sample, [..., 2], for `forward.personal_scores`."""
    scores = objective.scores(outputs)
    return torch.stack([objective.predictions(scores).double(), objective.losses(scores, batch.y)], -1)


def client_predictions(
    outputs: Tensor, y: Tensor, classes: int, scored: bool, objective: Objective = MULTICLASS
) -> Predictions:
    """Return one client's predictions.

    Args:
        outputs: Model outputs [n, C], or the result of `summarize`, [n, 2].
        y: Labels, [n].
        classes: Number of classes.
        scored: Whether `outputs` holds model outputs, not summaries.
        objective: Objective of the run.
    """
    if not len(y):
        return _no_predictions(y, classes, objective)
    if scored:
        return of_outputs(outputs, y, classes, objective)
    return Predictions(y, outputs[:, 0].long(), outputs[:, 1], classes, objective=objective.name)
