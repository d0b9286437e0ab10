"""A simulated federation: all clients and the server on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedhead.algorithm.base import Algorithm, Method
from fedhead.algorithm.phase import Reply
from fedhead.core.log import warn_once
from fedhead.core.schema import schema
from fedhead.core.tree import Tree
from fedhead.engine import evaluation, reply_check, sampling
from fedhead.engine import server as servers
from fedhead.engine.client_states import ClientStates
from fedhead.engine.clients import Clients
from fedhead.executors.job import Executor, Job
from fedhead.models.split_model import SplitModel

if TYPE_CHECKING:
    from fedhead.data.federation import Federation


@dataclass(frozen=True)
class Traffic:
    """What crossed the wire in one exchange, all clients together."""

    up: int
    down: int
    participants: int  # the clients that took part


class Simulation(Clients):
    """All clients of a federation with the server beside them; takes what `Clients` takes."""

    def __init__(self, federation: Federation, models: Sequence[SplitModel], method: Method, **settings: Any):
        super().__init__(federation, models, method, **settings)
        largest, size = max(self.task.sizes), self.task.local.batch_size
        if size > 2 * largest:
            warn_once(
                f"no client has more than {largest} samples, and batches are filled up to batch_size {size}: "
                f"batch_size={largest} trains alike in less time"
            )
        self.server = method.init_server(self.initial[0], self.task)

    # -- exchanges --------------------------------------------------------------------------------
    def jobs(
        self, algorithm: Algorithm, server: Tree, memory: ClientStates, cohort: list[int], round: int
    ) -> list[Job]:
        """The work of an exchange, a job an architecture."""
        return self.work(algorithm, servers.make_downlink(algorithm, server, cohort, self.task_of), memory, round)

    def algorithm(
        self,
        algorithm: Algorithm,
        server: Tree,
        memory: ClientStates,
        cohort: list[int],
        round: int,
        executor: Executor,
    ) -> tuple[Tree, Traffic]:
        """Let clients work, check replies, aggregate; the clients' states are written last."""
        downlink = servers.make_downlink(algorithm, server, cohort, self.task_of)
        replies: dict[int, Reply] = {}
        jobs = self.work(algorithm, downlink, memory, round)
        for job, found in zip(jobs, executor.run_all(jobs), strict=True):
            replies.update(zip(job.clients, found, strict=True))
        expected = None
        for k in cohort:
            reply_check.check(replies[k].send, expected, k, round)
            expected = expected or schema(replies[k].send)
        sent = {k: replies[k].send for k in cohort}
        sizes = {k: float(len(self.federation.rows[k])) for k in cohort}
        server = servers.aggregate(algorithm, server, sent, sizes, self.task)
        for k in cohort:
            memory[k] = replies[k].keep
        return server, Traffic(sum(send.nbytes for send in sent.values()), downlink.nbytes(), len(cohort))

    def cohort(self, number: int) -> list[int]:
        """The clients that take part in a round."""
        task = self.task
        return sampling.sample_cohort(task.seed, number, self.holders, task.clients, task.participation)

    def jobs_of_round(self, number: int) -> list[Job]:
        """The work of a round of training from the present state, one job per architecture."""
        return self.jobs(self.method, self.server, self.memory, self.cohort(number), number)

    def round(self, number: int, executor: Executor) -> Traffic:
        """One round of training."""
        cohort = self.cohort(number)
        if self.device.type == "cuda" and number < self.task.rounds:  # a CPU has no time to spare
            later = self.cohort(number + 1)
            self.prefetch.begin(f for k in later for f in self.forms(self.method, self.task_of(k), k, number + 1))
        self.server, traffic = self.algorithm(self.method, self.server, self.memory, cohort, number, executor)
        return traffic

    # -- evaluation -------------------------------------------------------------------------------
    def evaluate(
        self, algorithm: Algorithm, server: Tree, memory: ClientStates, round: int, executor: Executor | None = None
    ) -> dict[str, object]:
        """Accuracies of the global model and of every client's own; `executor` is the run's."""
        row = servers.figures(algorithm, server, self.task, self.test, self.bf16)
        row |= {"personal": None, "clients": None}
        if self.federation.client_test is not None:
            each = self.personal(algorithm, server, memory, round, executor)
            row["clients"], row["personal"] = each, evaluation.mean(each)
        return row

    def personal(
        self, algorithm: Algorithm, server: Tree, memory: ClientStates, round: int, executor: Executor | None = None
    ) -> list[float | None]:
        """Each client's accuracy on its own test samples, None for a client without any."""
        local = self.federation.client_test
        assert local is not None
        clients = [k for k in self.holders if len(local[k])]
        downlink = servers.make_downlink(algorithm, server, clients, self.task_of)
        found = self.own_accuracies(algorithm, downlink, memory, round, executor)
        return [found.get(k) for k in range(len(local))]
