"""Dry run of each client on a blank sample, which gives the server the schema of valid replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.system.text import printable
from fedhead.core.tree.tree import Tree
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs import targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.partitions.allocation import Indices
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.server import make_downlink
from fedhead.engine.experiment import training_objective
from fedhead.engine.experiment.experiment import Experiment
from fedhead.engine.states.client_states import ClientStates
from fedhead.executors.loop import Loop
from fedhead.flower.wire.protocol import RunSpec
from fedhead.models.allocation_limit import AllocationLimit
from fedhead.models.split_model import SplitModel

MODEL_MB = 1024  # default memory limit for building a site's model
MODEL_CHARACTERS = 4096  # limit of the JSON with a site's model and its parameters


class DryRun:
    """Server-side clients: each has its architecture and one blank sample.

    Args:
        spec: Specification of the run.
        experiment: Experiment of the run.
        models: Returns the architectures for the recipe keys that a site overrides; client i has model i mod n.
        public: Samples shared by all parties.
        max_model_mb: Memory limit for building a site's model.
        dtype: Data type of the models' weights.
    """

    def __init__(
        self,
        spec: RunSpec,
        experiment: Experiment,
        models: Callable[[Mapping[str, Any]], Sequence[SplitModel]],
        public: Samples | None = None,
        max_model_mb: int = MODEL_MB,
        dtype: torch.dtype = torch.float32,
    ):
        indices: list[Indices] = [np.zeros(1, np.int64)] * len(spec.sites)
        self._federation = Federation(
            Samples(spec.blank(), targets.blank(1, spec.classes, spec.objective)),
            indices,
            spec.classes,
            transform=spec.transform(),
            public=public,
            class_names=spec.class_names,
            objective=spec.objective,
            missing=spec.missing,
            columns=spec.columns,
            validation=None if experiment.schedule.validation is None else indices,
        )
        self._choices, self._experiment, self._max_model_mb, self._dtype = models, experiment, max_model_mb, dtype
        self._models: dict[tuple[str, int], SplitModel] = {
            ("{}", place): model for place, model in enumerate(models({}))
        }
        self._recipe = list(self._models)
        self._kinds = [self._recipe[k % len(self._recipe)] for k in range(len(spec.sites))]  # by client
        self._replies: dict[tuple[str, tuple[str, int]], Tree] = {}
        self.clients = self._clients(self._models, self._kinds)

    def assign(self, client: int, overrides: Mapping[str, Any]) -> None:
        """Set the architecture of a client.

        Args:
            client: Number of the client.
            overrides: Recipe keys that its site overrides; empty: the recipe's model.

        Raises:
            BadInput: If the model is too large, can't be built, or can't be trained with the others.
        """
        try:
            text = json.dumps(dict(overrides), sort_keys=True)
            choices = self._own(overrides, text) if overrides else [self._models[kind] for kind in self._recipe]
            kind = (text, client % len(choices))
            kinds = [kind if k == client else now for k, now in enumerate(self._kinds)]
            if kinds != self._kinds:
                known = {**self._models, kind: choices[kind[1]]}
                models = {kept: known[kept] for kept in dict.fromkeys([*self._recipe, *kinds])}
                self.clients = self._clients(models, kinds)  # raises an error for incompatible models
                self._models, self._kinds = models, kinds
        except FedheadError:
            raise
        except Exception as error:  # a site may send anything
            raise BadInput(f"its model can't be used: {printable(error, 200)}") from error

    def _own(self, overrides: Mapping[str, Any], text: str) -> Sequence[SplitModel]:
        """Build the architectures that a site requests."""
        if len(text) > MODEL_CHARACTERS or not isinstance(overrides.get("model", ""), str):
            raise BadInput(f"its model must be one name, with its parameters at most {MODEL_CHARACTERS} characters")
        with AllocationLimit(self._max_model_mb * 2**20, "raise max_model_mb in server.yaml if its model may have it"):
            choices = self._choices(overrides)
        blank = self.clients.pool.view(torch.zeros(1, dtype=torch.int64), None)
        with torch.no_grad():
            for model in choices:
                model.eval()(blank)
        return choices

    def _clients(self, models: Mapping[tuple[str, int], SplitModel], kinds: Sequence[tuple[str, int]]) -> Clients:
        places = {kind: place for place, kind in enumerate(models)}
        experiment = self._experiment.with_models(list(models.values()), [places[kind] for kind in kinds])
        experiment.check_models(len(kinds))
        experiment.check_data(self._federation, stages=False)
        return Clients(experiment, self._federation, dtype=self._dtype, all_here=False)

    def check(self, stage: Stage) -> None:
        """Check that a stage is compatible with the models; the sites check their test samples."""
        federation = replace(self._federation, client_test=self._federation.indices)
        training_objective.check(stage, federation.objective, self.clients.task.local)
        stage.check(list(self._models.values()), federation)

    def reply(self, algorithm: Algorithm, client: int, server: Tree) -> Tree:
        """Return the reply of a client in an exchange, with tensors on the meta device."""
        key = (f"{algorithm.name}: {algorithm}", self._kinds[client])  # shapes may depend on parameters
        if key not in self._replies:
            clients = self.clients
            downlink = make_downlink(algorithm, server, [client], clients.task_of)
            (job,) = clients.work(algorithm, downlink, ClientStates(clients.initial_state), round=1)
            (reply,) = Loop().train(job.truncated(0))
            self._replies[key] = reply.send.to("meta")
        return self._replies[key]

    def personal_model(self, algorithm: Algorithm, client: int, server: Tree) -> Tree:
        """Return the final model of a client after no steps; its schema is that of a trained one."""
        clients = self.clients
        downlink = make_downlink(algorithm, server, [client], clients.task_of)
        (job,) = clients.work(algorithm, downlink, ClientStates(clients.initial_state), round=1)
        (reply,) = Loop().train(job.truncated(0))
        (job,) = clients.work(algorithm, downlink, ClientStates(clients.initial_state, {client: reply.keep}), round=1)
        with torch.no_grad():
            return algorithm.personal_model(job.program.client(job.inputs(0)))
