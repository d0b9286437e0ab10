"""What a model says of test samples: scores on the device, and all that metrics are computed from."""

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
    """What a model predicts for test samples, with its scores; tensors stay on its device.

    The properties that scikit-learn's functions have as arguments (`y_true`, `y_pred`, `y_proba`, `y_score`) are numpy
    arrays, those of probabilities in double precision.

    Args:
        y: Labels, [N]; of several labels or of numbers to predict, [N, C].
        predicted: The class with the highest score, [N]; labels as 0 and 1, or numbers, [N, C].
        losses: The loss of each sample in double precision, [N].
        classes: Number of classes, labels or numbers.
        scores: Their scores, [N, C]; None where no metric needs them. Of a binary objective those of both classes.
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
        """Samples by true and predicted class, [C, C].

        Raises:
            BadInput: If the objective has no classes.
        """
        if not OBJECTIVES[self.objective].has_classes:
            raise BadInput(f"a confusion matrix needs classes, objective={self.objective} has none")
        places = (self.y * self.classes + self.predicted).bincount(minlength=self.classes**2)
        return np.asarray(places.cpu().numpy().reshape(self.classes, self.classes), np.int64)

    @cached_property
    def loss(self) -> float:
        """The mean loss."""
        return float(self.losses.mean())

    @cached_property
    def probabilities(self) -> Tensor:
        """The softmax of the scores (of several labels the sigmoid) in double precision, [N, C]."""
        assert self.scores is not None, "kept wherever a metric needs them"
        if self.objective == "regression":
            raise BadInput("numbers have no probabilities, objective=regression: use y_true and y_pred")
        scores = self.scores.double()
        return (F.logsigmoid(scores) if self.objective == "multilabel" else scores.log_softmax(-1)).exp()

    @cached_property
    def y_true(self) -> NDArray[Any]:
        """Labels, [N]; several labels, [N, C]; numbers, [N], or [N, C] where there are several per sample."""
        return self._array(self.y)

    @cached_property
    def y_pred(self) -> NDArray[Any]:
        """Predictions, as `y_true`."""
        return self._array(self.predicted)

    def _array(self, values: Tensor) -> NDArray[Any]:
        if self.objective != "regression":
            return np.asarray(values.cpu().numpy(), np.int64)
        found = np.asarray(values.cpu().numpy(), np.float64)
        return found[:, 0] if self.classes == 1 else found

    @cached_property
    def y_proba(self) -> NDArray[np.float64]:
        """Probabilities of the classes, [N, C]."""
        return np.asarray(self.probabilities.cpu().numpy(), np.float64)

    @property
    def y_score(self) -> NDArray[np.float64]:
        """Probabilities as `roc_auc_score` takes them: [N, C], of two classes those of the second one, [N]."""
        second = self.classes == 2 and self.objective != "multilabel"
        return np.asarray(self.y_proba[:, 1] if second else self.y_proba, np.float64)


def of_outputs(outputs: Tensor, y: Tensor, classes: int, objective: Objective) -> Predictions:
    """Return the predictions of a model's outputs [N, …] for samples with targets y."""
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
    """Test a model on all samples of a pool.

    Args:
        outputs: Returns the model's outputs for a batch of inputs, [B, C].
        pool: Test samples.
        classes: Number of classes, labels or numbers.
        keep_scores: Whether metrics need the scores themselves.
        batch: Samples at a time; fewer if memory runs out, from then on.
        objective: What the outputs stand for.
    """
    if not len(pool):
        return _nothing(pool.y, classes, objective)

    def part(rows: Tensor) -> Predictions:
        found = of_outputs(outputs(pool.view(rows, None)), pool.y[rows], classes, objective)
        return found if keep_scores else replace(found, scores=None)

    def run(samples: int) -> list[Predictions]:
        return [part(rows) for rows in torch.split(torch.arange(len(pool), device=pool.device), samples)]

    parts, fits = retry_with_smaller_batches(run, batch, len(pool), "testing a model")
    if fits < batch:
        remember_fitting(pool, fits)
    kept = torch.cat([part.scores for part in parts if part.scores is not None]) if keep_scores else None
    predicted, losses = torch.cat([part.predicted for part in parts]), torch.cat([part.losses for part in parts])
    return Predictions(pool.y, predicted, losses, classes, kept, objective.name)


def _nothing(y: Tensor, classes: int, objective: Objective) -> Predictions:
    nothing = torch.zeros(0, dtype=torch.float64, device=y.device)
    return Predictions(y, nothing.long(), nothing, classes, nothing.reshape(0, classes), objective.name)


# -- of the clients' own models -----------------------------------------------------------------------
def summarize(outputs: Tensor, batch: Batch, objective: Objective = MULTICLASS) -> Tensor:
    """Return the predicted class and the loss of each sample, [..., 2]; `forward.personal_scores` keeps these alone."""
    scores = objective.scores(outputs)
    return torch.stack([objective.predictions(scores).double(), objective.losses(scores, batch.y)], -1)


def client_predictions(
    found: Tensor, y: Tensor, classes: int, scored: bool, objective: Objective = MULTICLASS
) -> Predictions:
    """Return one client's predictions.

    Args:
        found: Outputs [n, C], or what `summarize` returned for each sample, [n, 2].
        y: Labels, [n].
        classes: Number of classes.
        scored: Whether `found` is the outputs.
        objective: What the outputs stand for.
    """
    if not len(y):
        return _nothing(y, classes, objective)
    if scored:
        return of_outputs(found, y, classes, objective)
    return Predictions(y, found[:, 0].long(), found[:, 1], classes, objective=objective.name)
