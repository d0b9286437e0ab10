"""The test of a global model: of one run, or of several runs at once in one stack of models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.task import Task
from fedhead.core.training.batch import Output
from fedhead.core.tree.foreach import unwrapped
from fedhead.core.tree.inputs import Inputs, device_of
from fedhead.core.tree.schema import schema
from fedhead.core.tree.tree import Weights, stack
from fedhead.core.tree.tree_check import check_rows
from fedhead.data.pool import Pool
from fedhead.executors.client.hook_check import check_once
from fedhead.executors.stack.map_clients import MAX_SAMPLES, MemoryBudget, map_in_stacks, samples_at_once, vectorized
from fedhead.metrics.predictions import Predictions, of_stacked_outputs, predict
from fedhead.models import functional
from fedhead.models.module_digest import computation_digest, settings_digest

STACK_SAMPLES = 8192  # samples at once, of all models of a stack; a large GPU takes more small ones


def scores(algorithm: Algorithm, w: Weights, x: Inputs, task: Task, bf16: bool) -> Tensor:
    """Return the scores of the classes by the global model, [B, C].

    Raises:
        BadInput: If a user's method writes into the weights, which it has a copy of to replace entries; if there is no
            row for each sample.
    """
    with torch.autocast(device_of(x).type, torch.bfloat16, enabled=bf16):
        out: Output = functional.call(algorithm.architecture(task.model).eval(), w, x)
        fix = "which the next batches and rounds read as well: compute a new tensor"
        with check_once(f"{type(algorithm).__name__}.scores", (algorithm,), {"w": w.map(unwrapped)}, fix):
            values = algorithm.scores(out, w if algorithm.is_built_in else w.copy(), task)
    return check_rows(values, x, algorithm.name)


@dataclass(frozen=True)
class ModelTest:
    """What is tested: a global model on test samples.

    Args:
        algorithm: The method or stage, which makes scores of the model's outputs.
        model: The model's weights.
        task: Sizes and settings.
        pool: Test samples.
        bf16: Whether the model computes in bfloat16.
        keep_scores: Whether metrics need the scores themselves.
    """

    algorithm: Algorithm
    model: Weights
    task: Task
    pool: Pool
    bf16: bool = False
    keep_scores: bool = False

    def scores(self, w: Weights, x: Inputs) -> Tensor:
        """Return the scores of the classes by a model of these weights, [B, C]."""
        return scores(self.algorithm, w, x, self.task, self.bf16)

    def run(self) -> Predictions:
        """Test the model by itself."""
        task, model = self.task, self.model
        return predict(
            lambda x: self.scores(model, x),
            self.pool,
            task.classes,
            self.keep_scores,
            samples_at_once(self.pool),
            task.objective,
        )


@dataclass(eq=False)
class JointModelTests:
    """Tests the models of several runs, those that compute alike in one stack.

    Args:
        budget: How much is tested at once.
    """

    budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(samples=MAX_SAMPLES))

    def __call__(self, tests: list[ModelTest]) -> list[Predictions]:
        """Return the predictions of each test."""
        groups: dict[Any, list[int]] = {}
        for place, test in enumerate(tests):
            groups.setdefault(_computation(test), []).append(place)
        found: dict[int, Predictions] = {}
        for places in groups.values():
            found.update(zip(places, self._run([tests[place] for place in places]), strict=True))
        return [found[place] for place in range(len(tests))]

    def _run(self, tests: list[ModelTest]) -> list[Predictions]:
        return map_in_stacks(
            [len(test.pool) for test in tests],
            lambda places: self._stacked([tests[place] for place in places]),
            lambda place: tests[place].run(),
            self.budget,
            "testing models",
        )

    @torch.no_grad()
    def _stacked(self, tests: list[ModelTest]) -> list[Predictions]:
        first, w = tests[0], stack([test.model for test in tests])
        outputs = vectorized(first.scores, first.pool.device, (0, None))
        each = samples_at_once(first.pool)
        all_models = min(self.budget.samples, max(STACK_SAMPLES, each))
        batch = max(1, min(each, all_models // len(tests)))
        return of_stacked_outputs(
            lambda x: outputs(w, x), first.pool, first.task.classes, first.keep_scores, batch, first.task.objective
        )


def _computation(test: ModelTest) -> Any:
    """What tests must have in common to be computed in one stack."""
    kind = type(test.algorithm)
    if kind.architecture is not Algorithm.architecture or not len(test.pool):
        return id(test)
    by = None if kind.scores is Algorithm.scores else settings_digest(test.algorithm)
    objective = (test.task.objective.name, test.task.classes)
    model = (computation_digest(test.task.model), tuple(schema(test.model).items()))
    return id(test.pool), test.bf16, test.keep_scores, by, objective, model
