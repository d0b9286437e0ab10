"""Contract checks of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedhead.algorithm.method import Method
from fedhead.core.components.component_check import name_of
from fedhead.core.training import random
from fedhead.core.training.batch import Output
from fedhead.data.federation.federation import Federation, Samples
from fedhead.engine.experiment.experiment import Experiment, Schedule
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.models.check import require_runnable
from fedhead.models.registry import ModelLike, build
from fedhead.models.split_model import SplitModel, weights
from fedhead.testing.checks import Check, CheckFailed, Skipped, as_check_failure, require, run_checks
from fedhead.testing.small import CLASSES, SHAPE
from fedhead.testing.trial import CPU, LOCAL, difference, final_tensors, train


def check_model(
    model: SplitModel | ModelLike,
    *,
    input_shape: Sequence[int] = SHAPE,
    classes: int | None = None,
    skip: Sequence[str] = (),
) -> list[Check]:
    """Check that a model trains in a loop and stacked, and that its predictions do not depend on the batch.

    In training, the padding rows of a partial batch must have no effect: BatchNorm layers ignore them, and models that
    mix the rows of a batch in another way fail.

    Args:
        model: Model, its name in recipes, or a function (input_shape, parameters with defaults) that returns a
            `fedhead.FeatureExtractor` or a `SplitModel`.
        input_shape: Shape of one input, without the batch axis.
        classes: Number of classes for a function; ignored for a built model.
        skip: Names of checks to leave out: "build", "use", "samples", "executors".

    Returns:
        The checks, with the reason for each that was skipped.

    Raises:
        CheckFailed: If a check fails, with the problem and the fix in one line.
    """
    owner = model if isinstance(model, str) else name_of(model)
    trial = ModelTrial(model, owner, input_shape, classes)
    return run_checks(owner, trial, MODEL_CHECKS, skip)


@dataclass(frozen=True)
class ModelTrial:
    """Model or its builder, with trial inputs."""

    source: SplitModel | ModelLike
    owner: str
    shape: Sequence[int]
    classes: int | None

    @cached_property
    def model(self) -> SplitModel:
        """The model, built once."""
        return self.build()

    def build(self) -> SplitModel:
        """Build the model, or return a given one."""
        if isinstance(self.source, SplitModel):
            return self.source
        if isinstance(self.source, nn.Module):
            raise CheckFailed(f"{self.owner} has no named parts: use fh.split(model, classifier='its last layer')")
        with as_check_failure(self.owner, f"while it was built for inputs of shape {tuple(self.shape)}"):
            return build(self.source, self.shape, self.classes or CLASSES)

    def trained(self, executor: Executor) -> dict[str, Tensor]:
        """Return all tensors after a round with two clients."""
        rng = np.random.RandomState(0)
        x, y = rng.randn(14, *self.shape).astype(np.float32), rng.randint(0, self.model.classes, 14)
        indices = [np.arange(9), np.arange(9, 14)]
        federation = Federation(Samples(torch.from_numpy(x), torch.from_numpy(y)), indices, self.model.classes)
        experiment = Experiment(Method(), (self.model,), LOCAL, Schedule(rounds=1))
        simulation = Simulation(experiment, federation, CPU, dtype=torch.float64)
        return final_tensors(train(simulation, executor, 1, 1))


def check_build(trial: ModelTrial) -> None:
    """Check that the seed determines the initial weights."""
    if isinstance(trial.source, SplitModel):
        raise Skipped("it is built already")
    first, second = (weights(model) for model in (trial.model, trial.build()))
    gap = difference(first.leaves(), second.leaves())
    require(not gap, f"{trial.owner}: built twice from one seed, its initial weights differ ({gap})")


def check_use(trial: ModelTrial) -> None:
    """Check that a model supports training and evaluation."""
    require_runnable(trial.model, trial.shape, trial.classes or trial.model.classes, trial.owner)


def check_samples(trial: ModelTrial) -> None:
    """Check that in evaluation mode a sample's logits do not depend on the others of its batch."""
    model, x = trial.model, random.uniform(torch.tensor(random.key("check_model")), 5, *trial.shape)
    training = model.training
    entries = {name: t.float() for name, t in weights(model).items()}
    try:
        with torch.no_grad():
            together: Output = functional_call(model.eval(), entries, (x,))
            alone = torch.cat([functional_call(model, entries, (row.unsqueeze(0),)).logits for row in x])
    finally:
        model.train(training)
    require(
        not difference({"logits": together.logits}, {"logits": alone}, 1e-4),
        f"{trial.owner}: in evaluation mode a sample's logits depend on the others of its batch: use layers with "
        "running statistics (nn.BatchNorm2d) or none over the batch (nn.GroupNorm)",
    )


def check_executors(trial: ModelTrial) -> None:
    """Check that stacked clients give the same numbers as sequential ones."""
    gap = difference(trial.trained(Loop()), trial.trained(Stack()), 1e-9)
    require(not gap, f"{trial.owner} gives other numbers with many clients at once than one after another ({gap})")


MODEL_CHECKS = (check_build, check_use, check_samples, check_executors)
