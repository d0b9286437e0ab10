"""Client side of an exchange: data, architectures, initial states and jobs.

A simulation holds all clients of a federation; a real site holds one. Both run this code. Batches depend on the
client's number, so a site draws the same ones as a simulation.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedhead.algorithm import class_rows
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import Task
from fedhead.algorithm.upload import Clip
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_check import checked_tree
from fedhead.data.pool import Pool
from fedhead.data.transforms.augment import Transform
from fedhead.engine.clients import local_schedule
from fedhead.engine.clients.client_batches import ClientBatches
from fedhead.engine.clients.features import with_features
from fedhead.engine.clients.padding_check import PaddingCheck
from fedhead.engine.clients.private_rounds import PrivateClients, PrivateSamples
from fedhead.engine.clients.server import Downlink
from fedhead.engine.experiment import training_objective
from fedhead.engine.experiment.experiment import Experiment
from fedhead.engine.states.client_states import ClientStates
from fedhead.executors.client.client_round import OPTIMIZER, initial_optimizer_states
from fedhead.executors.client.hook_check import check_client_hooks
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import ClientProgram
from fedhead.executors.stack.map_clients import MemoryBudget
from fedhead.models.batch_norm import may_normalize_batches
from fedhead.models.dropout import may_call_dropout
from fedhead.models.precision import warn_if_emulated
from fedhead.models.split_model import SplitModel, weights
from fedhead.privacy.client_dp import ClientDP
from fedhead.privacy.sample_dp import SampleDP

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation
    from fedhead.data.partitions.allocation import Indices


class Clients:
    """Clients of this machine: data, architectures and jobs.

    Validation happens elsewhere, in `Experiment.check` and `Experiment.check_data`.

    Args:
        experiment: Experiment to run.
        federation: Data of this machine.
        device: Device to train on.
        dtype: Data type of the models' weights.
        bf16: Whether models compute in bfloat16.
        all_here: Whether this machine holds all clients' data. A real site knows neither data nor sizes of the others.
    """

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        device: torch.device | str = "cpu",
        *,
        dtype: torch.dtype = torch.float32,
        bf16: bool = False,
        all_here: bool = True,
    ):
        self.experiment, self.federation, self.method = experiment, federation, experiment.method
        self.device, self.dtype, self.bf16 = torch.device(device), dtype, bf16
        if bf16:
            warn_if_emulated(self.device)
        self.assign = experiment.assignment(len(federation))
        templates = [_template(model, self.device, dtype) for model in experiment.models]
        # cached features replace the samples, and need no transform
        parts = federation
        transform = federation.transform
        cache = experiment.schedule.cache_features
        if cache is not None and len(federation.train.y):
            parts = with_features(federation, templates, cache, bf16)
            transform = Transform()
        self.pool = Pool(parts.train, transform, device, dtype)
        self.test = None if parts.test is None else Pool(parts.test, transform, device, dtype)
        # outputs on public samples are compared between clients, so these are never augmented
        self.public = None
        if parts.public is not None:
            self.public = Pool(parts.public, transform.replace(augment="none"), device, dtype)
        self.initial = [weights(model) for model in templates]
        local, schedule = experiment.local, experiment.schedule
        objective = training_objective.make(federation, local, self.device, all_here)
        training_pool = self._training_pool() if all_here else None
        self.tasks = [
            Task(
                model=model,
                classes=federation.classes,
                clients=len(federation),
                rounds=schedule.rounds,
                local=local,
                seed=schedule.seed,
                participation=schedule.participation,
                objective=objective,
                sizes=tuple(len(indices) for indices in federation.indices) if all_here else (),
                pool=training_pool,
                noise_shares=max((step.min_clients(len(federation)) for step in experiment.uploads), default=1),
            )
            for model in templates
        ]
        self.counts = torch.as_tensor(federation.counts(), dtype=dtype, device=self.device)
        self._counts_of = self.counts.unbind()  # once, instead of in every round
        self._initial_states: dict[int, Tree] = {}  # by architecture
        self.privacy = private_rounds(experiment, self.task)
        samples = self.privacy if isinstance(self.privacy, PrivateSamples) else None
        self.batches = ClientBatches(federation.indices, self.public, experiment.stragglers, samples)
        self.padding_check, self._all_here = PaddingCheck(), all_here
        self.budgets = [MemoryBudget.for_testing(self.pool) for _ in templates]  # by architecture

    def _training_pool(self) -> Pool:
        """Return the training samples of all clients, without local test samples."""
        indices = np.sort(np.concatenate(self.federation.indices))
        return (
            self.pool if len(indices) == len(self.pool) else self.pool.take(torch.from_numpy(indices).to(self.device))
        )

    def initial_state(self, client: int) -> Tree:
        """Return a client's initial state, shared by all clients of its architecture."""
        group = self.assign[client]
        if group not in self._initial_states:
            w, task = self.initial[group], self.tasks[group]
            state = checked_tree(self.method.init_client(w, task), f"{type(self.method).__name__}.init_client")
            if task.local.persistent:
                state = state.replace({OPTIMIZER: initial_optimizer_states(self.method, task, w, state)})
            self._initial_states[group] = state
        return self._initial_states[group]

    @property
    def task(self) -> Task:
        """Task of the first architecture, for fields that all architectures share."""
        return self.tasks[0]

    def task_of(self, client: int) -> Task:
        """Return the task of a client's architecture."""
        return self.tasks[self.assign[client]]

    def leave_out_classes_below(self, count: int) -> None:
        """Increase the minimum class count; clients leave classes with fewer samples out of their replies."""
        if count > self.task.min_class_count:
            self.tasks = [replace(task, min_class_count=count) for task in self.tasks]

    def small_classes(self, algorithm: Algorithm, client: int) -> list[int]:
        """Return the classes that a client leaves out of its reply because it holds too few samples of them."""
        return class_rows.small_classes(algorithm, self._counts_of[client], self.task.min_class_count)

    @cached_property
    def holders(self) -> list[int]:
        """Clients with training data; only these can take part."""
        return [k for k, indices in enumerate(self.federation.indices) if len(indices)]

    def lr(self, round: int) -> float:
        """Return the learning rate of a round, counted from 1; a stage counts as the round after the last one."""
        return self.task.local.lr(round, self.task.rounds)

    # -- work -------------------------------------------------------------------------------------
    def program(self, algorithm: Algorithm, group: int) -> ClientProgram:
        """Return the client program of one architecture for an exchange."""
        uploads, privacy = self.experiment.uploads, self.privacy if isinstance(algorithm, Method) else None
        if isinstance(privacy, PrivateClients) and privacy.protection.quantile is None:
            # the server clips again, and clips alone to adaptive norms
            uploads = (Clip(privacy.protection.clip), *uploads)
        samples = privacy.protection if isinstance(privacy, PrivateSamples) else None
        task = self.tasks[group]
        return ClientProgram(algorithm, task, self.pool, self.public, uploads, bf16=self.bf16, privacy=samples)

    def frozen_part(self, broadcast: Tree) -> Tree:
        """Return the frozen parameters of a broadcast, which a client receives only until its first accepted reply.

        The server never changes them. With several architectures, they are those that all of them freeze.
        """
        model = broadcast.get("model") if "model" in self.method.broadcast else None
        if not isinstance(model, Weights):  # as in the aggregation, which restores frozen weights
            return Tree()
        names = frozenset.intersection(*(task.model.frozen for task in self.tasks))
        return Tree({name: t for name, t in model.items() if name in names})

    def work(
        self,
        algorithm: Algorithm,
        downlink: Downlink,
        states: ClientStates,
        round: int,
        trains: bool = True,
    ) -> list[Job]:
        """Return the jobs of a downlink's clients, one per architecture; draw batches only if `trains`."""
        label = f"stage:{algorithm.name}" if isinstance(algorithm, Stage) else local_schedule.TRAIN
        jobs = []
        for group in sorted({self.assign[k] for k in downlink.per_client}):
            clients = [k for k in downlink.per_client if self.assign[k] == group]
            task, tables = self.tasks[group], None
            if trains:
                schedules, tables = self.batches.of_round(algorithm, task, group, clients, round, label)
            else:
                schedules = self.batches.empty(algorithm, task, clients, round, label)
            jobs.append(
                Job(
                    program=self.program(algorithm, group),
                    clients=clients,
                    broadcast=downlink.broadcast,
                    per_client=[downlink.per_client[k] for k in clients],
                    states=states.of(clients),
                    indices=[self.federation.indices[k] for k in clients],
                    counts=[self._counts_of[k] for k in clients],
                    schedules=schedules,
                    public_indices=self.batches.public_indices,
                    lr=self.lr(round),
                    round=round,
                    tables=tables,
                )
            )
            check_client_hooks(jobs[-1], trains, refuse_draws=self._all_here)
            if trains and jobs[-1].program.privacy is None:  # DP-SGD takes each sample alone
                self.padding_check(jobs[-1], group)
        return jobs

    def draw_ahead(self, clients: Sequence[int], round: int, tables: bool = True) -> None:
        """Start drawing the batches of a later training round and building their index tables.

        Large draws run in the background. Small ones run immediately and are copied to the device.

        Args:
            clients: Clients of that round.
            round: Number of the round.
            tables: Whether to build index tables; only a stack of all clients of an architecture uses them.
        """
        self.batches.forget()
        for group in sorted({self.assign[k] for k in clients}):
            members = [k for k in clients if self.assign[k] == group]
            self.batches.begin(self.program(self.method, group), group, members, round, tables)

    @property
    def test_indices(self) -> tuple[list[Indices], Pool]:
        """Indices of the clients' own test samples, and the pool that they index."""
        local = self.federation.client_test
        assert local is not None, "asked only where clients have test samples"
        pool = self.pool if self.federation.client_test_from == "train" else self.test
        assert pool is not None, "local test indices point into the test set"
        return local, pool


def private_rounds(experiment: Experiment, task: Task) -> PrivateClients | PrivateSamples | None:
    """Return the account of an experiment's rounds; None: they have no differential privacy."""
    for protection in experiment.privacy:
        if isinstance(protection, SampleDP):
            return PrivateSamples(protection, experiment.method, task, experiment.stragglers)
        if isinstance(protection, ClientDP):
            return PrivateClients(protection, task.rounds, task.clients, experiment.cohort_size(task.clients))
    return None


def _template(model: SplitModel, device: torch.device, dtype: torch.dtype) -> SplitModel:
    """Return a copy of a model, used as a template for functional calls with any weights."""
    template = copy.deepcopy(model).to(device, dtype)
    template.may_normalize_batches = may_normalize_batches(template)
    template.may_call_dropout = may_call_dropout(template)
    return template
