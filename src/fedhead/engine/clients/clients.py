"""The clients' half of an exchange: their data, architectures and initial states, and their work.

A simulation holds all clients of a federation; a real site holds one, whose number decides its batches. Both run this
very code.
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
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import Task
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_check import checked_tree
from fedhead.data.pool import Pool
from fedhead.data.transforms.augment import Transform
from fedhead.engine.clients import local_schedule
from fedhead.engine.clients.client_batches import ClientBatches
from fedhead.engine.clients.features import with_features
from fedhead.engine.clients.padding_check import PaddingCheck
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
from fedhead.models.dropout import calls_dropout
from fedhead.models.precision import warn_if_emulated
from fedhead.models.split_model import SplitModel, weights

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation
    from fedhead.data.partitions.allocation import Rows


class Clients:
    """The clients whose data is here: data, architectures and the work that they do in an exchange.

    It checks nothing: `Experiment.check` and `Experiment.check_data` do.

    Args:
        experiment: What is run.
        federation: The data that is here.
        device: Where to compute.
        dtype: Of the models' weights.
        bf16: Whether models compute in bfloat16.
        all_here: Whether the data of all clients is here; a real site knows neither the others' sizes nor their data.
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
        # features that are kept take the place of samples, and have no transform
        parts = federation
        transform = federation.transform
        cache = experiment.schedule.cache_features
        if cache is not None and len(federation.train.y):
            parts = with_features(federation, templates, cache, bf16)
            transform = Transform()
        self.pool = Pool(parts.train, transform, device, dtype)
        self.test = None if parts.test is None else Pool(parts.test, transform, device, dtype)
        # what clients say of public samples is compared sample by sample, so those are never augmented
        self.public = None
        if parts.public is not None:
            self.public = Pool(parts.public, transform.replace(augment="none"), device, dtype)
        if len(self.pool):
            x = self.pool.view(torch.zeros(2, dtype=torch.int64, device=self.device), None)
            for model in templates:
                model.calls_dropout = calls_dropout(model, x)
        self.initial = [weights(model) for model in templates]
        local, schedule = experiment.local, experiment.schedule
        objective = training_objective.make(federation, local, self.device, all_here)
        held = self._held() if all_here else None
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
                sizes=tuple(len(rows) for rows in federation.rows) if all_here else (),
                pool=held,
            )
            for model in templates
        ]
        self.counts = torch.as_tensor(federation.counts(), dtype=dtype, device=self.device)
        self._counts_of = self.counts.unbind()  # once, not in every round
        self._initial_states: dict[int, Tree] = {}  # by architecture
        self.batches = ClientBatches(federation.rows, self.public, experiment.stragglers)
        self.padding_check, self._all_here = PaddingCheck(), all_here
        self.budgets = [MemoryBudget.for_testing(self.pool) for _ in templates]  # of the clients of each architecture

    def _held(self) -> Pool:
        """What the clients train on, all of them together: local test samples are no part of it."""
        rows = np.sort(np.concatenate(self.federation.rows))
        return self.pool if len(rows) == len(self.pool) else self.pool.take(torch.from_numpy(rows).to(self.device))

    def initial_state(self, client: int) -> Tree:
        """A client's state before its first round, which all clients of its architecture share."""
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
        """The task, for what does not depend on the architecture."""
        return self.tasks[0]

    def task_of(self, client: int) -> Task:
        """The task with the client's own architecture."""
        return self.tasks[self.assign[client]]

    def leave_out_classes_below(self, count: int) -> None:
        """Leave the rows of classes with fewer samples out of what clients send, or of still more as was set before."""
        if count > self.task.min_class_count:
            self.tasks = [replace(task, min_class_count=count) for task in self.tasks]

    def small_classes(self, algorithm: Algorithm, client: int) -> list[int]:
        """The classes that a client holds too few samples of to send their rows in an exchange."""
        return class_rows.small_classes(algorithm, self._counts_of[client], self.task.min_class_count)

    @cached_property
    def holders(self) -> list[int]:
        """The clients that hold training data; the others can't take part."""
        return [k for k, rows in enumerate(self.federation.rows) if len(rows)]

    def lr(self, round: int) -> float:
        """The learning rate of a round, from 1."""
        return self.task.local.lr(round, self.task.rounds)

    def stage_lr(self, round: int) -> float:
        """The learning rate of a stage: decayed by the rounds before it, as if no more of them had been planned.

        Args:
            round: The stage's number, that of the round after those.
        """
        return self.task.local.lr(round, round - 1)

    # -- work -------------------------------------------------------------------------------------
    def program(self, algorithm: Algorithm, group: int) -> ClientProgram:
        """What the clients of one architecture do in an exchange."""
        return ClientProgram(
            algorithm, self.tasks[group], self.pool, self.public, self.experiment.uploads, bf16=self.bf16
        )

    def work(
        self,
        algorithm: Algorithm,
        downlink: Downlink,
        states: ClientStates,
        round: int,
        trains: bool = True,
    ) -> list[Job]:
        """What the clients of a downlink have to do, one job per architecture; batches are drawn if it `trains`."""
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
                    rows=[self.federation.rows[k] for k in clients],
                    counts=[self._counts_of[k] for k in clients],
                    schedules=schedules,
                    public_rows=self.batches.public_rows,
                    lr=self.lr(round) if label == local_schedule.TRAIN else self.stage_lr(round),
                    round=round,
                    tables=tables,
                )
            )
            check_client_hooks(jobs[-1], trains, refuse_draws=self._all_here)
            if trains:
                self.padding_check(jobs[-1], group)
        return jobs

    def draw_ahead(self, clients: Sequence[int], round: int, tables: bool = True) -> None:
        """Begin to draw the batches of a later round of training, and to put them into tables, in the background.

        Few are drawn, put into tables and copied to the device at once.

        Args:
            clients: Those who take part in it.
            round: Number of the round.
            tables: Whether to make tables; only a stack that takes all clients of an architecture at once uses them.
        """
        self.batches.forget()
        for group in sorted({self.assign[k] for k in clients}):
            own = [k for k in clients if self.assign[k] == group]
            self.batches.begin(self.program(self.method, group), group, own, round, tables)

    @property
    def test_rows(self) -> tuple[list[Rows], Pool]:
        """The clients' own test samples, and the pool that they are rows of."""
        local = self.federation.client_test
        assert local is not None, "asked only where clients have test samples"
        pool = self.pool if self.federation.client_test_from == "train" else self.test
        assert pool is not None, "local test rows point into the test set"
        return local, pool


def _template(model: SplitModel, device: torch.device, dtype: torch.dtype) -> SplitModel:
    """Return a copy of a model for computing with any weights."""
    made = copy.deepcopy(model).to(device, dtype)
    made.may_normalize_batches = may_normalize_batches(made)
    return made
