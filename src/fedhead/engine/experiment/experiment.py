"""An experiment: everything that decides a run but its data, and the checks that its parts go together.

`fedhead.recipes.experiment` builds one from a recipe or from Python objects. It is the only carrier from there to the
last round: simulation, sites and round loop read their settings from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from fedhead.aggregators.base import Aggregator
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage, bind
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.algorithm.upload import Upload
from fedhead.core.training.objectives import OBJECTIVES
from fedhead.data.federation.federation import Federation
from fedhead.engine.experiment import compatibility, training_objective
from fedhead.engine.experiment.callbacks import Callback, CallbackList
from fedhead.engine.policies import robust_mean, sampling
from fedhead.engine.policies.outliers import OutlierPolicy
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.metrics.registry import Metric
from fedhead.models.split_model import SplitModel
from fedhead.samplers.base import Sampler
from fedhead.samplers.uniform import UniformSampler


@dataclass(frozen=True)
class InputSpec:
    """The shape of a model's inputs and its number of classes."""

    shape: Any  # by name where inputs have names
    classes: int
    types: Any = torch.float32  # dtype of a model's inputs, by name likewise
    objective: str = "multiclass"  # what the outputs stand for

    @classmethod
    def of(cls, federation: Federation) -> Self:
        """Return the inputs of a federation's samples."""
        return cls(federation.input_shape, federation.classes, federation.input_types, federation.objective)

    @property
    def outputs(self) -> int:
        """Number of outputs that a model needs."""
        return OBJECTIVES[self.objective].outputs(self.classes)


@dataclass(frozen=True)
class Schedule:
    """The numbers of a run that no component has.

    Args:
        rounds: How many rounds are trained.
        participation: The share of the clients that train in a round.
        seed: Decides cohorts, batches and augmentation.
        evaluate_every: Evaluate after every so many rounds; the last `last_rounds` are always evaluated.
        last_rounds: Over how many of the last rounds the mean accuracy is taken.
        validation: Share of each client's training samples that callbacks watch; None: none.
        cache_features: Where the features of a frozen extractor are kept, "memory" or a folder; None: nowhere.
    """

    rounds: int
    participation: float = 1.0
    seed: int = 0
    evaluate_every: int = 1
    last_rounds: int = 1
    validation: float | None = None
    cache_features: str | None = None


@dataclass(frozen=True)
class Experiment:
    """Everything of a run but its data and the machine that computes it.

    Args:
        method: The method.
        models: The architectures with their initial weights: client i has model i mod n, or the one of `assign`.
        local: How clients train.
        schedule: Rounds, participation, seed and evaluation.
        stages: Stages after the rounds, in order.
        uploads: Transforms of a reply before it leaves a client, in order.
        aggregator: The server's rule in place of the weighted mean; None: the mean.
        outliers: The server's policy for replies that stand out; None: all count.
        sampler: The rule that draws a round's clients; None: uniformly.
        stragglers: Clients that do not finish in time, and what the server does then; None: nobody is late.
        metrics: Metrics of the global model besides the accuracy, by name.
        callbacks: Callbacks that may stop the run or keep a round's models.
        assign: The number of each client's model; None: i mod n.

    Raises:
        BadInput: If a stage is there twice or can't follow the method.
    """

    method: Method
    models: tuple[SplitModel, ...]
    local: LocalTraining
    schedule: Schedule
    stages: tuple[Stage, ...] = ()
    uploads: tuple[Upload, ...] = ()
    aggregator: Aggregator | None = None
    outliers: OutlierPolicy | None = None
    sampler: Sampler | None = None
    stragglers: Stragglers | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    callbacks: tuple[Callback, ...] = ()
    assign: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Put the stages on top of the method."""
        object.__setattr__(self, "stages", bind(self.stages, self.method))

    def with_models(self, models: Sequence[SplitModel], assign: Sequence[int]) -> Self:
        """Return the experiment with the models of one place: a site, or the server's picture of all sites.

        Args:
            models: The architectures that are there.
            assign: The number of each client's model.
        """
        cache = None if self.schedule.cache_features is None else "memory"  # no folder of another machine
        schedule = replace(self.schedule, cache_features=cache)
        return replace(self, models=tuple(models), assign=tuple(assign), schedule=schedule)

    def assignment(self, clients: int) -> list[int]:
        """Return the number of each client's model."""
        return compatibility.assignment(self.assign, len(self.models), clients)

    def cohort_size(self, clients: int) -> int:
        """Return how many clients take part in a round, if so many hold data."""
        return max(1, math.floor(self.schedule.participation * clients + 0.5))  # Python rounds halves to even

    def check(self, inputs: InputSpec, clients: int, validated: bool | None = None) -> None:
        """Check that all parts go together; no data is needed.

        Args:
            inputs: Shape and number of classes of the samples.
            clients: Number of clients.
            validated: Whether there are validation samples; None: as the schedule says.

        Raises:
            BadInput: They do not.
        """
        for algorithm in (self.method, *self.stages):
            training_objective.check(algorithm, inputs.objective, self.local)
            algorithm.check_head(self.models)
        for step in self.uploads:
            step.check(self.method)
        if self.aggregator is not None:
            robust_mean.check(self.aggregator, self.method)
        if self.outliers is not None:
            self.outliers.check(self.method)
        self.method.check_local(self.local)
        validated = self.schedule.validation is not None if validated is None else validated
        CallbackList(self.callbacks, self.metrics, validated, objective=inputs.objective)
        self.check_models(clients)
        for model in self.models:
            task = Task(model, inputs.classes, clients, self.schedule.rounds, self.local)
            for algorithm in (self.method, *self.stages):
                compatibility.check_trained(algorithm, self.method, task)

    def check_models(self, clients: int) -> None:
        """Raise `BadInput` if the method can't train the clients' models side by side."""
        compatibility.check_models(self.method, self.models, self.assignment(clients), self.local)

    def check_data(self, federation: Federation, stages: bool = True) -> None:
        """Check that all parts can work with the data.

        Args:
            federation: The data.
            stages: Whether to check the stages as well; one place does not know the test samples of all clients.

        Raises:
            BadInput: A part can't.
        """
        self.local.check_clients(len(federation))
        for algorithm in (self.method, *(self.stages if stages else ())):
            algorithm.check(self.models, federation)
        size = self.cohort_size(len(federation))
        if self.aggregator is not None:
            robust_mean.check(self.aggregator, self.method, size)
        if sizes := {k: len(rows) for k, rows in enumerate(federation.rows) if len(rows)}:
            sampling.check(self.sampler or UniformSampler(), size, sizes, self.schedule.seed)
