"""Evaluation of a global model."""

from __future__ import annotations

import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.task import Task
from fedhead.core.training.batch import Output
from fedhead.core.tree.inputs import Inputs, device_of
from fedhead.core.tree.tree import Weights
from fedhead.core.tree.tree_check import check_rows
from fedhead.data.pool import Pool
from fedhead.executors.client.hook_check import check_once
from fedhead.executors.stack.map_clients import samples_at_once
from fedhead.metrics.predictions import Predictions, predict
from fedhead.models import functional


def scores(algorithm: Algorithm, w: Weights, x: Inputs, task: Task, bf16: bool) -> Tensor:
    """Return the class scores of the global model, [B, C].

    Raises:
        BadInput: If a user's method modifies the weights in place, or returns another number of rows than samples.
    """
    with torch.autocast(device_of(x).type, torch.bfloat16, enabled=bf16):
        out: Output = functional.call(algorithm.architecture(task.model).eval(), w, x)
        fix = "which the next batches and rounds read as well: compute a new tensor"
        with check_once(f"{type(algorithm).__name__}.scores", (algorithm,), lambda: {"w": w}, fix):
            values = algorithm.scores(out, w, task)
    return check_rows(values, x, algorithm.name)


def global_predictions(
    algorithm: Algorithm, model: Weights, task: Task, pool: Pool, bf16: bool = False, keep_scores: bool = False
) -> Predictions:
    """Return the predictions of a global model.

    Args:
        algorithm: Method or stage, which computes scores from model outputs.
        model: Weights of the model.
        task: Task.
        pool: Test samples.
        bf16: Whether the model computes in bfloat16.
        keep_scores: Whether to store the scores for metrics that need them.
    """
    return predict(
        lambda x: scores(algorithm, model, x, task, bf16),
        pool,
        task.classes,
        keep_scores,
        samples_at_once(pool),
        task.objective,
    )
