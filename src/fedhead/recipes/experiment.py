"""An experiment: a recipe with all that it names, built and checked once.

`Experiment.from_recipe` is the only way from a recipe to what can be run: commands that validate, run, resume, reopen,
reproduce or deploy a recipe all go through it, so that what was checked is what is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from fedhead.aggregators.base import Aggregator
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.algorithm.upload import Upload
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import blank, to_dtype
from fedhead.data.federation.federation import Federation
from fedhead.engine.clients import compatibility, training_objective
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.features import MEMORY
from fedhead.engine.policies import robust_mean
from fedhead.engine.policies.outliers import OutlierPolicy
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.engine.rounds import callbacks as engine_callbacks
from fedhead.engine.rounds.callbacks import Callback, CallbackList
from fedhead.engine.rounds.rounds import FinishedRun, Snapshot
from fedhead.engine.rounds.simulate import simulate
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.metrics import registry
from fedhead.metrics.registry import Metric
from fedhead.models.split_model import SplitModel
from fedhead.recipes import build
from fedhead.recipes import recipe_data as recipe_data
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.recipe_data import Inputs
from fedhead.samplers.base import Sampler

BuiltModels = dict[str, tuple[SplitModel, ...]]


@dataclass(frozen=True)
class Experiment:
    """Everything of a run but its data.

    Attributes:
        recipe: The settings. `fedhead.run`, whose components are objects, fills in the numbers alone.
        method: What is trained.
        stages: What follows the rounds, in order.
        uploads: What replies pass before they leave a client, in order.
        metrics: Metrics of the global model besides the accuracy, by name.
        local: How clients train.
        models: The architectures with their initial weights: client i has model i mod n.
        aggregator: What the server takes in place of the weighted mean; None: nothing else.
        outliers: What the server does with replies that stand out; None: nothing.
        callbacks: What may stop the run or keep a round's models.
        sampler: Who takes part in a round; None: any client, with the same probability.
        stragglers: Who does not finish in time, and what the server does then; None: nobody.
        own_data: The user's own data set, which has to be read to know what its samples look like.
    """

    recipe: Recipe
    method: Method
    stages: tuple[Stage, ...]
    uploads: tuple[Upload, ...]
    metrics: Mapping[str, Metric]
    local: LocalTraining
    models: tuple[SplitModel, ...]
    aggregator: Aggregator | None = None
    outliers: OutlierPolicy | None = None
    callbacks: tuple[Callback, ...] = ()
    sampler: Sampler | None = None
    stragglers: Stragglers | None = None
    own_data: Federation | None = None

    @classmethod
    def from_recipe(cls, recipe: Recipe, inputs: Inputs | None = None, built: BuiltModels | None = None) -> Self:
        """Build all that a recipe names and check that it goes together; no data is read but the user's own.

        Args:
            recipe: What to build.
            inputs: What the samples look like; None: as those of the recipe's data set.
            built: Models that were built before, by what decides them; those of this recipe are added.

        Raises:
            BadInput: Something is unknown, out of range, or does not go with the rest.
        """
        method, stages = build.algorithms(recipe)
        uploads, local = build.uploads(recipe), build.local(recipe)
        own_data = None
        if inputs is None and recipe_data.is_path(recipe.dataset):
            own_data = recipe_data.federation(recipe)
            inputs = Inputs.of(own_data)
        inputs = inputs or recipe_data.inputs(recipe)
        metrics = registry.find(recipe.metrics, recipe.folders, inputs.objective)
        training_objective.check(method, inputs.objective, local)  # before its head is built
        models = _models(recipe, inputs, method.head, {} if built is None else built)
        aggregator, outliers = build.aggregator(recipe.aggregator, recipe.folders), build.outliers(recipe.outliers)
        callbacks = tuple(engine_callbacks.make(text, recipe.folders) for text in recipe.callbacks)
        sampler, late = build.sampler(recipe.sampler, recipe.folders), build.stragglers(recipe.stragglers)
        made = cls(
            recipe,
            method,
            stages,
            uploads,
            metrics,
            local,
            models,
            aggregator,
            outliers,
            callbacks,
            sampler,
            late,
            own_data,
        )
        made.check(inputs)
        return made

    def check(self, inputs: Inputs) -> None:
        """Check that all parts go together, before any data is read.

        Args:
            inputs: What the samples look like.

        Raises:
            BadInput: They do not.
        """
        compatibility.check_rounds(self.recipe.rounds, self.stages)
        for client, model in enumerate(self.models):
            _forward(model, inputs, self.recipe, client)
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
        registry.check(self.metrics, inputs.classes, inputs.objective)
        CallbackList(self.callbacks, self.metrics, self.recipe.validation is not None, objective=inputs.objective)
        clients = range(len(self.models))[: self.recipe.clients]
        compatibility.check_models(self.method, self.models, clients, self.local)
        for model in self.models:
            task = Task(model, inputs.classes, self.recipe.clients, self.recipe.rounds, self.local)
            for algorithm in (self.method, *self.stages):
                compatibility.check_trained(algorithm, self.method, task)

    # -- with data ----------------------------------------------------------------------------------
    def federation(self, data: str | Path | None = None) -> Federation:
        """Read the recipe's data and distribute it over the clients.

        Args:
            data: The folder of the data sets; None: the default one.

        Raises:
            BadInput: The method or a stage can't work with this data.
        """
        made = self.own_data or recipe_data.federation(self.recipe, data)
        self.check_data(made)
        return made

    def check_data(self, federation: Federation) -> None:
        """Raise `BadInput` if the method or a stage can't work with this data."""
        self.local.check_clients(len(federation))
        for algorithm in (self.method, *self.stages):
            algorithm.check(self.models, federation)

    def simulation(
        self, federation: Federation, device: torch.device, bf16: bool, assign: Sequence[int] | None = None
    ) -> Simulation:
        """Return the simulation before its first round."""
        settings = {"device": device, "bf16": bf16, "assign": assign, **self._settings()}
        return Simulation(federation, self.models, self.method, **settings)

    def clients(
        self,
        federation: Federation,
        models: Sequence[SplitModel],
        assign: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> Clients:
        """Return the clients of a site or, with blank data, the server's picture of all of them.

        Args:
            federation: The data that is here.
            models: The architectures that are here.
            assign: The number of each client's architecture.
            device: Where to compute.
        """
        settings = self._settings()
        if settings["cache_features"] is not None:
            settings["cache_features"] = MEMORY  # a recipe names no folder of another machine
        return Clients(federation, models, self.method, assign=assign, device=device, all_here=False, **settings)

    def simulate(
        self,
        federation: Federation,
        *,
        executor: str | Executor = "auto",
        device: str = "auto",
        precision: str = "fp32",
        compile: str = "auto",
        assign: Sequence[int] | None = None,
        resume: Snapshot | None = None,
        on_round: Callable[[Snapshot], Any] | None = None,
        on_start: Callable[[str], None] | None = None,
    ) -> FinishedRun:
        """Simulate the whole run; the arguments are those of `engine.simulate.simulate`."""
        return simulate(
            federation,
            self.models,
            self.method,
            stages=self.stages,
            metrics=self.metrics,
            callbacks=self.callbacks,
            evaluate_every=self.recipe.evaluate_every,
            last_rounds=self.recipe.last_rounds,
            executor=executor,
            device=device,
            precision=precision,
            compile=compile,
            assign=assign,
            resume=resume,
            on_round=on_round,
            on_start=on_start,
            **self._settings(),
        )

    def _settings(self) -> dict[str, Any]:
        """What clients are created with, in a simulation and at a site."""
        recipe = self.recipe
        return {
            "rounds": recipe.rounds,
            "local": self.local,
            "participation": recipe.participation,
            "uploads": self.uploads,
            "aggregator": self.aggregator,
            "outliers": self.outliers,
            "sampler": self.sampler,
            "stragglers": self.stragglers,
            "seed": recipe.seed,
            "cache_features": recipe.cache_features,
        }


def _models(recipe: Recipe, inputs: Inputs, head: str | None, built: BuiltModels) -> tuple[SplitModel, ...]:
    """Return the recipe's models, those that were built before where there are some."""
    decides = (recipe.model, recipe.model_parameters, recipe.seed, recipe.weights, recipe.freeze, recipe.folders)
    key = repr((decides, inputs, head))
    if key not in built:
        built[key] = tuple(build.architectures(recipe, inputs, head))
    return built[key]


def _forward(model: SplitModel, inputs: Inputs, recipe: Recipe, client: int) -> None:
    """Pass one blank input through the model: what it can't take shows here, not after the data is loaded."""
    was = model.training
    try:
        with torch.no_grad():
            model.eval()(to_dtype(blank(inputs.shape, inputs.types), torch.get_default_dtype()))
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        name = recipe.model if isinstance(recipe.model, str) else recipe.model[client]
        raise BadInput(
            f"model: {name!r} can't take {recipe.dataset}'s inputs of shape {inputs.shape} ({reason})"
        ) from error
    finally:
        model.train(was)
