"""A simulated federation: the server's state, the clients' memory, and the exchanges between them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedhead import plan
from fedhead.data.pool import Pool
from fedhead.engine import evaluate, gate
from fedhead.engine.job import Executor, Job, Rows
from fedhead.engine.local import OPTIMIZER, Program, initial_optimizers
from fedhead.engine.state import Memory
from fedhead.errors import BadInput
from fedhead.method import Exchange, Method, Stage
from fedhead.models.split import Split, weights
from fedhead.tree import Tree, Weights
from fedhead.types import Local, Replies, Reply, Task

if TYPE_CHECKING:
    from fedhead.data.federation import Federation


@dataclass(frozen=True)
class Traffic:
    """What crossed the wire in one exchange, all clients together."""

    up: int
    down: int


class Simulation:
    """All of a federation on one machine. Clients may differ in architecture: `assign` gives each its model's number."""

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
    ):
        self.federation, self.method = federation, method
        self.device, self.dtype, self.bf16 = torch.device(device), dtype, bf16
        self.assign = list(assign) if assign is not None else [k % len(models) for k in range(len(federation))]
        self.pool = Pool(federation.train, federation.transform, device, dtype)
        self.test = None if federation.test is None else Pool(federation.test, federation.transform, device, dtype)
        public = federation.public
        self.public = None if public is None else Pool(public, federation.transform, device, dtype)
        templates = [copy.deepcopy(model).to(self.device, dtype) for model in models]
        self.initial = [weights(model) for model in templates]
        _refuse_shapes(method, self.initial, self.assign)
        self.tasks = [
            Task(
                model=model,
                classes=federation.classes,
                clients=len(federation),
                rounds=rounds,
                local=local,
                seed=seed,
                participation=participation,
                sizes=tuple(len(rows) for rows in federation.rows),
                pool=self.pool,
            )
            for model in templates
        ]
        self.counts = torch.as_tensor(federation.counts(), dtype=dtype, device=self.device)
        self.server = method.init_server(self.initial[0], self.tasks[0])
        self.memory = Memory(self._initial_state)

    def _initial_state(self, client: int) -> Tree:
        w, task = self.initial[self.assign[client]], self.tasks[self.assign[client]]
        state = self.method.init_client(w, task)
        if task.local.persistent:
            state = state.replace({OPTIMIZER: initial_optimizers(self.method, task, w, state)})
        return state

    @property
    def task(self) -> Task:
        """The task, for what does not depend on the architecture."""
        return self.tasks[0]

    @property
    def holders(self) -> list[int]:
        """The clients that hold training data; the others can't take part."""
        return [k for k, rows in enumerate(self.federation.rows) if len(rows)]

    # -- exchanges --------------------------------------------------------------------------------
    def lr(self, round: int) -> float:
        """The learning rate of a round, from 1."""
        local = self.task.local
        return local.optimizer.lr * local.lr_decay ** (round - 1)

    def program(self, exchange: Exchange, group: int) -> Program:
        """What the clients of one architecture do in an exchange."""
        return Program(exchange, self.tasks[group], self.pool, self.public, bf16=self.bf16)

    def jobs(self, exchange: Exchange, server: Tree, memory: Memory, cohort: list[int], round: int) -> list[Job]:
        """The work of an exchange, a job an architecture."""
        down = Tree({name: server[name] for name in exchange.downlink if name in server})
        label = f"stage:{exchange.name}" if isinstance(exchange, Stage) else "train"
        jobs = []
        for group in sorted({self.assign[k] for k in cohort}):
            clients = [k for k in cohort if self.assign[k] == group]
            task = self.tasks[group]
            jobs.append(
                Job(
                    program=self.program(exchange, group),
                    clients=clients,
                    down=down,
                    own=[exchange.address(server, k, task) for k in clients],
                    states=[memory[k] for k in clients],
                    rows=[self.federation.rows[k] for k in clients],
                    counts=[self.counts[k] for k in clients],
                    schedules=[self._schedules(exchange, task, k, round, label) for k in clients],
                    public_rows=self._public_rows(),
                    lr=self.lr(round),
                    round=round,
                )
            )
        return jobs

    def _schedules(self, exchange: Exchange, task: Task, client: int, round: int, label: str) -> list[plan.Schedule]:
        local = task.local
        schedules = []
        for number, phase in enumerate(exchange.phases(task)):
            if phase.data == "public" and self.public is None:
                raise BadInput(f"{exchange.name} needs public data: give the federation some (public=...)")
            n = len(self.federation.rows[client]) if phase.data == "private" else len(self._public_rows())
            size = phase.batch_size or local.batch_size
            epochs = local.epochs if phase.epochs is None else phase.epochs
            key = plan.phase_key(task.seed, round, label, number, client)
            schedules.append(plan.schedule(n, size, epochs, local.drop_last, key))
        return schedules

    def _public_rows(self) -> Rows:
        return np.arange(0 if self.public is None else len(self.public), dtype=np.int64)

    def exchange(
        self, exchange: Exchange, server: Tree, memory: Memory, cohort: list[int], round: int, executor: Executor
    ) -> tuple[Tree, Traffic]:
        """One exchange: clients work, the gate checks, the server aggregates; the clients' memory is written last."""
        replies: dict[int, Reply] = {}
        down = 0
        for job in self.jobs(exchange, server, memory, cohort, round):
            down += len(job.clients) * job.down.nbytes + sum(own.nbytes for own in job.own)
            replies.update(zip(job.clients, executor.run(job), strict=True))
        expected = None
        for k in cohort:
            gate.check(replies[k].send, expected, k, round)
            expected = expected or gate.schema(replies[k].send)
        sizes = [float(len(self.federation.rows[k])) for k in cohort]
        gathered = Replies(cohort, sizes, [replies[k].send for k in cohort])
        server = exchange.aggregate(server, gathered, self.task)
        for k in cohort:
            memory[k] = replies[k].keep
        return server, Traffic(up=sum(replies[k].send.nbytes for k in cohort), down=down)

    def round(self, number: int, executor: Executor) -> Traffic:
        """One round of training."""
        task = self.task
        cohort = plan.cohort(task.seed, number, self.holders, task.clients, task.participation)
        self.server, traffic = self.exchange(self.method, self.server, self.memory, cohort, number, executor)
        return traffic

    # -- evaluation -------------------------------------------------------------------------------
    def evaluate(self, exchange: Exchange, server: Tree, memory: Memory, round: int) -> dict[str, object]:
        """Accuracies of the global model and of every client's own."""
        row: dict[str, object] = {"accuracy": None, "per_class": None, "personal": None, "clients": None}
        model = exchange.global_model(server, self.task)
        if model is not None and self.test is not None:
            right = evaluate.hits(lambda x: self.scores(model, x), self.test)
            row["accuracy"] = evaluate.accuracy(right)
            row["per_class"] = evaluate.per_class(right, self.test.y, self.task.classes)
        if self.federation.local is not None:
            each = self.personal(exchange, server, memory, round)
            row["clients"], row["personal"] = each, evaluate.mean(each)
        return row

    def scores(self, w: Weights, x: torch.Tensor) -> torch.Tensor:
        """The global model's logits."""
        model = self.task.model.eval()
        cast = torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16)
        with cast:
            return torch.func.functional_call(model, dict(w), (x,)).logits  # type: ignore[no-any-return]

    @torch.no_grad()
    def personal(self, exchange: Exchange, server: Tree, memory: Memory, round: int) -> list[float | None]:
        """Each client's accuracy on its own test samples, None for a client without any."""
        local = self.federation.local
        assert local is not None
        pool = self.pool if self.federation.local_from == "train" else self.test
        assert pool is not None, "local test rows point into the test set"
        found: list[float | None] = [None] * len(local)
        clients = [k for k in self.holders if len(local[k])]
        for job in self.jobs(exchange, server, memory, clients, round):
            for place, k in enumerate(job.clients):
                me = job.program.me(job.sight(place))
                w = exchange.personal_model(me)
                right = evaluate.hits(lambda x, w=w, me=me: exchange.predict(w, x, me), pool, local[k])  # type: ignore[misc]  # defaults bind the loop's values
                found[k] = evaluate.accuracy(right)
        return found


def _refuse_shapes(method: Method, initial: list[Weights], assign: list[int]) -> None:
    """What a method averages must have one shape in every architecture."""
    first = initial[0].part(*method.shared)
    for group, w in enumerate(initial):
        part = w.part(*method.shared)
        for name in [*first, *part]:
            shapes = [tuple(t[name].shape) if name in t else None for t in (first, part)]
            if shapes[0] != shapes[1]:
                client = assign.index(group) if group in assign else group
                raise BadInput(
                    f"{method.name or type(method).__name__} averages {name!r}, which is {shapes[0]} for client 0 but "
                    f"{shapes[1]} for client {client}: use one architecture, or a method that shares only the classifier"
                )
