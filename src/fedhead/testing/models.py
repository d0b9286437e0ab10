"""The check of a model: that it can be trained functionally, vectorized, and tested sample by sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from fedhead.algorithm.method import Method
from fedhead.core.components.component_check import name_of
from fedhead.core.training import random
from fedhead.core.training.batch import Output
from fedhead.data.federation.federation import Federation, Samples
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.models import check as models
from fedhead.models.registry import ModelLike, build
from fedhead.models.split_model import SplitModel, weights
from fedhead.testing.failure import Check, CheckFailed, Skipped, as_check_failure, run_checks
from fedhead.testing.small import CLASSES, SHAPE
from fedhead.testing.trial import LOCAL, difference, final_tensors, train


def check_model(
    model: SplitModel | ModelLike, *, input_shape: Sequence[int] = SHAPE, classes: int | None = None
) -> list[Check]:
    """Check that a model can be trained on every executor, and says of a sample the same in every batch.

    In training, the rows that fill up a partial batch must change nothing: BatchNorm layers leave them out, and a model
    that mixes the rows of its batch in another way fails.

    Args:
        model: The model, or what a recipe names: a function (input_shape, parameters with defaults) that returns a
            `fedhead.FeatureExtractor` or a `SplitModel`, or its name.
        input_shape: The shape of one input, without the batch axis.
        classes: How many classes a function is to build for; a model knows its own.

    Returns:
        The checks that were made.

    Raises:
        CheckFailed: In one line, what is wrong and how to fix it.
    """
    owner = model if isinstance(model, str) else name_of(model)
    made = _built(model, owner, input_shape, classes or CLASSES)
    return run_checks(
        {
            "build": lambda: _build(model, owner, input_shape, classes or CLASSES),
            "use": lambda: _use(made, owner, input_shape, classes or made.classes),
            "samples": lambda: _samples(made, owner, input_shape),
            "executors": lambda: _executors(made, owner, input_shape),
        }
    )


def _built(model: SplitModel | ModelLike, owner: str, shape: Sequence[int], classes: int) -> SplitModel:
    if isinstance(model, SplitModel):
        return model
    if isinstance(model, nn.Module):
        raise CheckFailed(f"{owner} has no named parts: use fh.split(model, classifier='name of its last layer')")
    with as_check_failure(owner, f"while it was built for inputs of shape {tuple(shape)}"):
        return build(model, shape, classes)


def _build(model: SplitModel | ModelLike, owner: str, shape: Sequence[int], classes: int) -> None:
    if isinstance(model, SplitModel):
        raise Skipped("it is built already")
    one, other = (weights(_built(model, owner, shape, classes)) for _ in range(2))
    if gap := difference(one.leaves(), other.leaves()):
        raise CheckFailed(f"{owner}: built twice from one seed, its initial weights differ ({gap})")


def _use(model: SplitModel, owner: str, shape: Sequence[int], classes: int) -> None:
    for finding in models.check(model, shape, classes):
        if finding.blocks != "nothing":
            raise CheckFailed(f"{owner}: {finding}")


def _samples(model: SplitModel, owner: str, shape: Sequence[int]) -> None:
    """In evaluation mode a sample's logits must not depend on the others of its batch."""
    x = random.uniform(torch.tensor(random.key("check_model")), 5, *shape)
    training = model.training
    entries = {name: t.float() for name, t in weights(model).items()}
    try:
        with torch.no_grad(), as_check_failure(owner, "in evaluation mode"):
            together: Output = functional_call(model.eval(), entries, (x,))
            alone = torch.cat([functional_call(model, entries, (row.unsqueeze(0),)).logits for row in x])
    finally:
        model.train(training)
    if difference({"logits": together.logits}, {"logits": alone}, 1e-4):
        raise CheckFailed(
            f"{owner}: in evaluation mode a sample's logits depend on the others of its batch: use layers with running "
            f"statistics (nn.BatchNorm2d) or none over the batch (nn.GroupNorm)"
        )


def _executors(model: SplitModel, owner: str, shape: Sequence[int]) -> None:
    with as_check_failure(owner, "one client after another"):
        expected = final_tensors(_trained(model, shape, Loop()))
    with as_check_failure(owner, "with many clients at once"):
        if gap := difference(expected, final_tensors(_trained(model, shape, Stack())), 1e-9):
            raise CheckFailed(f"{owner} gives other numbers with many clients at once than one after another ({gap})")


def _trained(model: SplitModel, shape: Sequence[int], executor: Executor) -> Simulation:
    rng = np.random.RandomState(0)
    x, y = rng.randn(14, *shape).astype(np.float32), rng.randint(0, model.classes, 14)
    rows = [np.arange(9), np.arange(9, 14)]
    federation = Federation(Samples(torch.from_numpy(x), torch.from_numpy(y)), rows, model.classes)
    simulation = Simulation(federation, [model], Method(), rounds=1, local=LOCAL, dtype=torch.float64)
    return train(simulation, executor, 1, 1)
