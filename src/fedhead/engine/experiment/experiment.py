"""Experiment: the full configuration of a run except its data, with compatibility checks.

`fedhead.recipes.experiment` builds it from a recipe or from Python objects. Simulation, sites and round loop read
their configuration from it alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from fedhead.aggregators.base import Aggregator
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage, bind
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.algorithm.upload import SecureSum, Upload
from fedhead.core.system.log import warn_once
from fedhead.core.training.objectives import OBJECTIVES
from fedhead.data.federation.federation import Federation
from fedhead.engine.experiment import compatibility, protections, training_objective
from fedhead.engine.experiment.callbacks import Callback, CallbackList
from fedhead.engine.policies import robust_mean, sampling, secure_sums
from fedhead.engine.policies.outliers import OutlierPolicy
from fedhead.engine.policies.secure_sums import SecureExchange
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.metrics.registry import Metric
from fedhead.models.split_model import SplitModel
from fedhead.privacy.base import Protection
from fedhead.samplers.base import Sampler
from fedhead.samplers.poisson import PoissonSampler
from fedhead.samplers.uniform import UniformSampler


@dataclass(frozen=True)
class InputSpec:
    """Shape of a model's inputs, and number of classes."""

    shape: Any  # a dict by input name if inputs are named
    classes: int
    types: Any = torch.float32  # dtype of a model's inputs; a dict for named inputs
    objective: str = "multiclass"  # name of the objective

    @classmethod
    def of(cls, federation: Federation) -> Self:
        """Return the input specification of a federation."""
        return cls(federation.input_shape, federation.classes, federation.input_types, federation.objective)

    @property
    def outputs(self) -> int:
        """Number of outputs that a model needs."""
        return OBJECTIVES[self.objective].outputs(self.classes)


@dataclass(frozen=True)
class Schedule:
    """Rounds, participation, seed and evaluation of a run.

    Args:
        rounds: Number of training rounds.
        participation: Share of the clients that train in a round.
        seed: Seed of cohorts, batches and augmentation.
        evaluate_every: Number of rounds between evaluations; the last `last_rounds` are always evaluated.
        last_rounds: Number of final rounds that the mean accuracy covers.
        validation: Share of each client's training samples reserved for callbacks; None: none.
        cache_features: Cache for the features of a frozen extractor: "memory" or a folder; None: no cache.
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
    """Full configuration of a run, except its data and compute options.

    Args:
        method: Method.
        models: Architectures with initial weights. Client i has model i mod n, unless `assign` is given.
        local: Local training of the clients.
        schedule: Rounds, participation, seed and evaluation.
        stages: Stages after the rounds, in order.
        uploads: Transforms of a reply before it leaves a client, in order.
        privacy: Differential privacy of what clients send.
        aggregator: Aggregator that replaces the weighted mean; None: the mean.
        outliers: Policy for outlying replies; None: all replies count.
        sampler: Sampler of the cohorts; None: uniform.
        stragglers: Simulated late clients and how the server handles them; None: no late clients.
        metrics: Metrics besides the accuracy, by name.
        callbacks: Callbacks that may stop the run or keep a round's models.
        assign: Model index of each client; None: i mod n.

    Raises:
        BadInput: If a stage is listed twice or can't follow the method.
    """

    method: Method
    models: tuple[SplitModel, ...]
    local: LocalTraining
    schedule: Schedule
    stages: tuple[Stage, ...] = ()
    uploads: tuple[Upload, ...] = ()
    privacy: tuple[Protection, ...] = ()
    aggregator: Aggregator | None = None
    outliers: OutlierPolicy | None = None
    sampler: Sampler | None = None
    stragglers: Stragglers | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    callbacks: tuple[Callback, ...] = ()
    assign: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Bind the stages to the method and protect them."""
        object.__setattr__(self, "stages", protections.protect(bind(self.stages, self.method), self.privacy))

    def with_models(self, models: Sequence[SplitModel], assign: Sequence[int]) -> Self:
        """Return the experiment with other models: those of one site, or those of all sites as the server knows them.

        Args:
            models: Architectures.
            assign: Model index of each client.
        """
        cache = None if self.schedule.cache_features is None else "memory"  # the folder may not exist on this machine
        schedule = replace(self.schedule, cache_features=cache)
        return replace(self, models=tuple(models), assign=tuple(assign), schedule=schedule)

    def assignment(self, clients: int) -> list[int]:
        """Return the model index of each client."""
        return compatibility.assignment(self.assign, len(self.models), clients)

    def cohort_size(self, clients: int) -> int:
        """Return the number of clients in a round, if that many hold data."""
        return max(1, math.floor(self.schedule.participation * clients + 0.5))  # round() would round half to even

    def secure_exchange(self, algorithm: Algorithm, task: Task) -> SecureExchange | None:
        """Return the secure sum of a round or stage; None: clients send open replies, or nothing."""
        cohort = task.clients if isinstance(algorithm, Stage) else self.cohort_size(task.clients)
        return SecureExchange.of(self.uploads, algorithm, task, cohort)

    def check(self, inputs: InputSpec, clients: int, validated: bool | None = None) -> None:
        """Check that all components are compatible, without reading data.

        Args:
            inputs: Shape and number of classes of the samples.
            clients: Number of clients.
            validated: Whether there are validation samples; None: as in the schedule.

        Raises:
            BadInput: If components are incompatible.
        """
        for algorithm in (self.method, *self.stages):
            training_objective.check(algorithm, inputs.objective, self.local)
            algorithm.check_head(self.models)
        protections.check(self.privacy, self.method, self.stages, self.uploads, self.schedule.rounds)
        secure_sum = [step.name for step in self.uploads if isinstance(step, SecureSum)]
        others = self._components_of_single_replies() + secure_sum
        protections.check_client_dp(
            self.privacy, self.method, self.models, self.sampler, others, clients, self.cohort_size(clients)
        )
        protections.check_sample_dp(self.privacy, self.models, self.local)
        for step in self.uploads:
            step.check(self.method)
        self._check_secure_sum(clients)
        if self.aggregator is not None:
            robust_mean.check(self.aggregator, self.method, self.cohort_size(clients))
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

    def _components_of_single_replies(self) -> list[str]:
        """Return the keys of components that read single replies."""
        return [name for name in ("aggregator", "outliers") if getattr(self, name) is not None]

    def _check_secure_sum(self, clients: int) -> None:
        others = self._components_of_single_replies()
        if len(self.models) > 1:
            others.append("a federation of several architectures")
        if self.sampler is not None and type(self.sampler).inclusion is not Sampler.inclusion:
            others.append(f"the weighting of sampler {self.sampler.name}")
        reasons = [f"{name} needs single replies, which secure_sum hides" for name in others]
        if isinstance(self.sampler, PoissonSampler):
            reasons.append("sampler=poisson may draw too few clients for a sum: use uniform")
        exchanges: list[Algorithm] = [self.method] if self.schedule.rounds else []
        exchanges += [step for stage in self.stages for step in stage.chain()]
        secure_sums.check(self.uploads, exchanges, clients, self.cohort_size(clients), reasons)

    def check_models(self, clients: int) -> None:
        """Raise `BadInput` if the method can't train the clients' models together."""
        compatibility.check_models(self.method, self.models, self.assignment(clients), self.local)

    def check_data(self, federation: Federation, stages: bool = True) -> None:
        """Check that all components are compatible with the data.

        Args:
            federation: Federation.
            stages: Whether to check the stages too. A site skips this: it doesn't know all clients' test samples.

        Raises:
            BadInput: If a component is incompatible with the data.
        """
        self.local.check_clients(len(federation))
        protections.check_samples(self.privacy, federation)
        for algorithm in (self.method, *(self.stages if stages else ())):
            algorithm.check(self.models, federation)
        if sizes := {k: len(indices) for k, indices in enumerate(federation.indices) if len(indices)}:
            size = self.cohort_size(len(federation))
            cohort = sampling.check(self.sampler or UniformSampler(), size, sizes, self.schedule.seed)
            # a random number of clients, as of Poisson sampling, may be all of them in round 1
            self._warn_without_effect(size >= len(sizes) == len(cohort.clients), sizes)

    def _warn_without_effect(self, whole: bool, sizes: Mapping[int, int]) -> None:
        """Warn of settings that have no effect on these data; `whole`: all clients are in every round."""
        if self.sampler is not None and whole:
            warn_once(f"sampler {self.sampler.name} has no effect: all clients are in every round; lower participation")
        if self.local.drop_last and max(sizes.values()) < self.local.batch_size:
            warn_once(f"drop_last has no effect: no client has {self.local.batch_size} samples, a whole batch")
