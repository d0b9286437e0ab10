"""The dry run: the server plays each client's part once on a blank sample, to know what a reply must look like."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedhead.algorithm.base import Algorithm, Stage
from fedhead.core.schema import Schema, schema
from fedhead.core.tree import Tree
from fedhead.data.allocation import Rows
from fedhead.data.arrays import Samples
from fedhead.data.federation import Federation
from fedhead.engine.client_states import ClientStates
from fedhead.engine.clients import Clients
from fedhead.engine.server import make_downlink
from fedhead.executors.loop import Loop
from fedhead.flower.protocol import RunSpec
from fedhead.models.split_model import SplitModel


class DryRun:
    """The clients as the server knows them: each with its architecture and one blank sample."""

    def __init__(
        self,
        spec: RunSpec,
        models: Callable[[Mapping[str, Any]], Sequence[SplitModel]],  # from the recipe keys that a site replaces
        make: Callable[[Federation, list[SplitModel], list[int]], Clients],
        public: Samples | None = None,
    ):
        blank = torch.zeros(1, *spec.shape, dtype=torch.uint8 if len(spec.shape) == 3 else torch.float32)
        rows: list[Rows] = [np.zeros(1, np.int64)] * len(spec.sites)
        self._federation = Federation(
            Samples(blank, torch.zeros(1, dtype=torch.int64)),
            rows,
            spec.classes,
            transform=spec.transform(),
            public=public,
            names=spec.names,
        )
        self._choices, self._make = models, make
        self._models = list(models({}))  # client i has model i mod n
        self._kinds = [("{}", place) for place in range(len(self._models))]
        self._assign = [k % len(self._models) for k in range(len(spec.sites))]
        self._schemas: dict[tuple[str, int], Schema] = {}
        self.clients = make(self._federation, self._models, self._assign)

    def assign(self, client: int, own: Mapping[str, Any]) -> None:
        """Note a client's architecture; `BadInput` if the method can't train it beside the others'."""
        choices = self._choices(own)
        place = client % len(choices)
        kind = (json.dumps(dict(own), sort_keys=True), place)
        kinds, models = list(self._kinds), list(self._models)
        if kind not in kinds:
            kinds.append(kind)
            models.append(choices[place])
        assign = [kinds.index(kind) if k == client else group for k, group in enumerate(self._assign)]
        if assign != self._assign:
            self.clients = self._make(self._federation, models, assign)  # refuses what can't go together
            self._kinds, self._models, self._assign = kinds, models, assign

    def check(self, stage: Stage, tested: bool = True) -> None:
        """Refuse a stage that does not go with the models or without the sites' own test samples."""
        federation = replace(self._federation, client_test=self._federation.rows) if tested else self._federation
        stage.check(self._models, federation)

    def schema(self, algorithm: Algorithm, client: int, server: Tree) -> Schema:
        """Names, shapes and types of what a client sends in an exchange."""
        key = (f"{type(algorithm).__name__}:{algorithm.name}", self._assign[client])
        if key not in self._schemas:
            clients = self.clients
            downlink = make_downlink(algorithm, server, [client], clients.task_of)
            (job,) = clients.work(algorithm, downlink, ClientStates(clients.initial_state), round=1)
            (reply,) = Loop().run(job.truncated(0))
            self._schemas[key] = schema(reply.send)
        return self._schemas[key]
