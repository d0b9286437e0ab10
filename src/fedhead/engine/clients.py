"""The clients' half of an exchange: their data, architectures and memory, and the work that they are posted.

A simulation holds all clients of a federation; a real site holds one, whose number decides its batches. Both run this
very code.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedhead import plan
from fedhead.data.pool import Pool
from fedhead.engine import evaluate, forward, refuse
from fedhead.engine.ahead import Ahead, Form
from fedhead.engine.job import Executor, Job, Rows
from fedhead.engine.local import OPTIMIZER, initial_optimizers
from fedhead.engine.program import Program
from fedhead.engine.server import Post
from fedhead.engine.state import Memory
from fedhead.errors import BadInput
from fedhead.exchange import Exchange, Method, Stage
from fedhead.models.split import Split, weights
from fedhead.tree import Tree
from fedhead.types import Local, Task

if TYPE_CHECKING:
    from fedhead.data.federation import Federation


class Clients:
    """The clients whose data is here. They may differ in architecture: `assign` gives each its model's number."""

    def __init__(
        self,
        federation: Federation,
        models: Sequence[Split],
        method: Method,
        *,
        rounds: int,
        local: Local,
        participation: float = 1.0,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        bf16: bool = False,
        assign: Sequence[int] | None = None,
        all_here: bool = True,  # a real site knows neither the others' sizes nor their data
    ):
        method.check(models, federation)
        method.check_local(local)
        self.federation, self.method = federation, method
        self.device, self.dtype, self.bf16 = torch.device(device), dtype, bf16
        self.assign = refuse.assignment(assign, len(models), len(federation))
        self.pool = Pool(federation.train, federation.transform, device, dtype)
        self.test = None if federation.test is None else Pool(federation.test, federation.transform, device, dtype)
        public = federation.public
        # what clients say of public samples is compared sample by sample, so those are never augmented
        plain = federation.transform.replace(augment="none")
        self.public = None if public is None else Pool(public, plain, device, dtype)
        templates = [copy.deepcopy(model).to(self.device, dtype) for model in models]
        self.initial = [weights(model) for model in templates]
        refuse.mixtures(method, templates, self.assign, local)
        self.tasks = [
            Task(
                model=model,
                classes=federation.classes,
                clients=len(federation),
                rounds=rounds,
                local=local,
                seed=seed,
                participation=participation,
                sizes=tuple(len(rows) for rows in federation.rows) if all_here else (),
                pool=self._held() if all_here else None,
            )
            for model in templates
        ]
        self.counts = torch.as_tensor(federation.counts(), dtype=dtype, device=self.device)
        self.memory = Memory(self.initial_state)
        self.ahead = Ahead()
        self.rooms = [forward.Room.on(self.device) for _ in templates]  # for testing the clients of each architecture

    def _held(self) -> Pool:
        """What the clients train on, all of them together: local test samples are no part of it."""
        rows = np.sort(np.concatenate(self.federation.rows))
        if len(rows) == len(self.pool):
            return self.pool
        return Pool(self.federation.train.take(rows), self.federation.transform, self.device, self.dtype)

    def initial_state(self, client: int) -> Tree:
        """A client's state before its first round."""
        w, task = self.initial[self.assign[client]], self.task_of(client)
        state = self.method.init_client(w, task)
        if task.local.persistent:
            state = state.replace({OPTIMIZER: initial_optimizers(self.method, task, w, state)})
        return state

    @property
    def task(self) -> Task:
        """The task, for what does not depend on the architecture."""
        return self.tasks[0]

    def task_of(self, client: int) -> Task:
        """The task with the client's own architecture."""
        return self.tasks[self.assign[client]]

    @property
    def holders(self) -> list[int]:
        """The clients that hold training data; the others can't take part."""
        return [k for k, rows in enumerate(self.federation.rows) if len(rows)]

    def lr(self, round: int) -> float:
        """The learning rate of a round, from 1."""
        local = self.task.local
        return local.optimizer.lr * local.lr_decay ** (round - 1)

    # -- work -------------------------------------------------------------------------------------
    def program(self, exchange: Exchange, group: int) -> Program:
        """What the clients of one architecture do in an exchange."""
        return Program(exchange, self.tasks[group], self.pool, self.public, bf16=self.bf16)

    def work(self, exchange: Exchange, post: Post, memory: Memory, round: int, trains: bool = True) -> list[Job]:
        """What the clients that got post have to do, a job an architecture; its batches are drawn if it `trains`."""
        label = f"stage:{exchange.name}" if isinstance(exchange, Stage) else "train"
        jobs = []
        for group in sorted({self.assign[k] for k in post.own}):
            clients = [k for k in post.own if self.assign[k] == group]
            task = self.tasks[group]
            jobs.append(
                Job(
                    program=self.program(exchange, group),
                    clients=clients,
                    down=post.down,
                    own=[post.own[k] for k in clients],
                    states=[memory[k] for k in clients],
                    rows=[self.federation.rows[k] for k in clients],
                    counts=[self.counts[k] for k in clients],
                    schedules=[self._schedules(exchange, task, k, round, label, trains) for k in clients],
                    public_rows=self._public_rows(),
                    lr=self.lr(round),
                    round=round,
                )
            )
        return jobs

    def _schedules(
        self, exchange: Exchange, task: Task, client: int, round: int, label: str, drawn: bool
    ) -> list[plan.Schedule]:
        forms = self.forms(exchange, task, client, round, label)
        return [self.ahead.schedule(form) if drawn else plan.undrawn(*form[:4]) for form in forms]

    def forms(self, exchange: Exchange, task: Task, client: int, round: int, label: str = "train") -> list[Form]:
        """What the batches of a client's phases are drawn from."""
        local = task.local
        forms = []
        for number, phase in enumerate(exchange.phases(task)):
            if phase.data == "public" and self.public is None:
                raise BadInput(f"{exchange.name} needs public data: give the federation some (public=...)")
            n = len(self.federation.rows[client]) if phase.data == "private" else len(self._public_rows())
            epochs = local.epochs if phase.epochs is None else phase.epochs
            epochs = epochs if round >= phase.begins else 0
            key = plan.phase_key(task.seed, round, label, number, client)
            forms.append((n, phase.batch_size or local.batch_size, epochs, local.drop_last, key))
        return forms

    def _public_rows(self) -> Rows:
        return np.arange(0 if self.public is None else len(self.public), dtype=np.int64)

    # -- evaluation -------------------------------------------------------------------------------
    def own_accuracies(
        self, exchange: Exchange, post: Post, memory: Memory, round: int, executor: Executor | None = None
    ) -> dict[int, float | None]:
        """The accuracy of each client that got post on its own test samples; `executor` is the run's."""
        local = self.federation.local
        assert local is not None, "asked only where clients have test samples"
        pool = self.pool if self.federation.local_from == "train" else self.test
        assert pool is not None, "local test rows point into the test set"
        found: dict[int, float | None] = {}
        for job in self.work(exchange, post, memory, round, trains=False):
            room = self.rooms[self.assign[job.clients[0]]] if forward.together(self.device, executor) else None
            right = forward.personal(job, pool, [local[k] for k in job.clients], room)
            found.update({k: evaluate.accuracy(hits) for k, hits in zip(job.clients, right, strict=True)})
        return found
