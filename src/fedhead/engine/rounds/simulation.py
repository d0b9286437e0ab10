"""The simulation: all clients and the server on one machine, trained by an executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import Task
from fedhead.core.system.log import logger, warn_once
from fedhead.core.tree.tree import Tree
from fedhead.data.partitions.allocation import Rows
from fedhead.data.pool import Pool
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.evaluation import ClientTest, ClientTests
from fedhead.engine.clients.server import evaluate_global_model, initial_server, make_downlink
from fedhead.engine.experiment import compatibility, training_objective
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, InputSpec
from fedhead.engine.rounds.client_model_tests import client_model_tests
from fedhead.engine.rounds.transport import Context, Received, Transport
from fedhead.engine.states.client_states import ClientStates
from fedhead.engine.states.host_states import HostStates
from fedhead.executors import select
from fedhead.executors.client.base import Executor, ExecutorReport
from fedhead.executors.client.job import Job
from fedhead.executors.forward import ForwardExecutor
from fedhead.executors.loop import Loop
from fedhead.metrics.records import Row
from fedhead.metrics.registry import NO_METRICS, Metric
from fedhead.models.precision import set_precision

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation


class Simulation(Transport):
    """All clients of a federation with the server beside them; the transport that asks an executor.

    Args:
        experiment: What is run.
        federation: The clients' data.
        compute: Device, executor and precision; `begin` selects an executor that is given by its name.
        dtype: Of the models' weights.

    Raises:
        BadInput: If parts of the experiment do not go together, or with the data.
    """

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        compute: Compute | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ):
        experiment.check(InputSpec.of(federation), len(federation), federation.validation is not None)
        experiment.check_data(federation)
        compute = compute or Compute()
        device, executor = select.device(compute.device), compute.executor
        bf16 = set_precision(compute.precision, device)
        self._clients = Clients(experiment, federation, device, dtype=dtype, bf16=bf16)
        self.test = self.clients.test
        largest, size = max(self.task.sizes), self.task.local.batch_size
        if size > 2 * largest and self.task.rounds:
            warn_once(
                f"no client has more than {largest} samples, and batches are filled up to batch_size {size}: "
                f"batch_size={largest} trains alike in less time"
            )
        self.server = initial_server(experiment.method, self.clients.initial[0], self.task)
        self.states: ClientStates = ClientStates(self.clients.initial_state)
        if device.type == "cuda":
            self.portion = None  # its stacks are of clients of similar sizes, taken from all of them
            if experiment.cohort_size(len(federation)) < len(federation):
                self.states = HostStates(self.clients.initial_state, device)  # the others' would only fill its memory
        self._wanted, self._compile = executor, select.check_compile(compute.compile)
        self.executor: Executor = executor if isinstance(executor, Executor) else Loop()

    def using(self, executor: Executor) -> Self:
        """Let this executor train the clients from now on; returns the simulation."""
        self._wanted = self.executor = executor
        return self

    # -- transport --------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """The executor's name."""
        return self.executor.name

    @property
    def clients(self) -> Clients:
        """The clients, which are all here."""
        return self._clients

    @property
    def device(self) -> torch.device:
        """Where the clients compute."""
        return self.clients.device

    @property
    def task(self) -> Task:
        """The task, for what does not depend on the architecture."""
        return self.clients.task

    def report(self) -> ExecutorReport:
        """Return the executor's report."""
        return self.executor.report()

    def check(self, stage: Stage) -> None:
        """Refuse a stage that does not go with the models or the data."""
        federation, tasks = self.clients.federation, self.clients.tasks
        training_objective.check(stage, federation.objective, self.task.local)
        stage.check([task.model for task in tasks], federation)
        stage.check_counts(torch.as_tensor(federation.counts()).sum(0))
        for task in tasks:
            compatibility.check_trained(stage, self.experiment.method, task)

    def log(self, line: str) -> None:
        """Warn of it."""
        logger.warning(line)

    def begin(self) -> None:
        """Select the executor."""
        self.executor = select.executor(self._wanted, self, compile=self._compile)

    def end_rounds(self) -> None:
        """Release the batches and the states that were prepared for a round that does not come."""
        self.clients.batches.forget()
        if isinstance(self.states, HostStates):
            self.states.release_prefetched()

    def restore(self, server: Tree, kept: Mapping[int, Tree], round: int) -> None:
        """Go on from an earlier state, on this simulation's device."""
        here = isinstance(self.states, HostStates)
        clients = {k: state if here else state.to(self.device) for k, state in kept.items()}
        super().restore(server.to(self.device), clients, round)

    def present(self) -> list[int]:
        """Return the clients that hold data."""
        return list(self.clients.holders)

    def sizes(self, present: Sequence[int]) -> dict[int, int]:
        """Return how many training samples each of these clients has."""
        return {k: self.task.sizes[k] for k in present}

    def exchange(self, context: Context, cohort: list[int]) -> Received:
        """Let the executor do the work of a cohort, one job per architecture."""
        algorithm, round = context.algorithm, context.round
        downlink = make_downlink(algorithm, context.server, cohort, self.clients.task_of)
        executor = self._executor_for(algorithm)
        jobs = self.clients.work(algorithm, downlink, context.states, round)
        if self.compiled_from is not None and isinstance(algorithm, Method):
            jobs = [replace(job, compiled=round >= self.compiled_from) for job in jobs]
        replies = executor.run(jobs)
        if isinstance(algorithm, Method):
            self._prepare_next(context, cohort, replies.whole_stacks)
        return Received(replies, downlink.nbytes())

    def _prepare_next(self, context: Context, training: list[int], tables: bool) -> None:
        """Prepare the round after this one while a GPU trains this one; a CPU has no time to spare.

        Args:
            context: The states and the number of this round; the last one is followed by none.
            training: The clients of this round.
            tables: Whether to make tables of the next round's batches, for a stack of all clients.
        """
        states, following = context.states, context.round + 1
        goes_on = context.round < self.task.rounds
        if isinstance(states, HostStates):
            states.prefetch(self.cohort(following) if goes_on and states.hold_tensors else [], training)
        if self.device.type == "cuda":
            self.clients.draw_ahead(self.cohort(following) if goes_on else [], following, tables)

    def _executor_for(self, algorithm: Algorithm) -> Executor:
        """Stages that only pass over each client's data once are no work for a stack on a CPU."""
        if isinstance(algorithm, Method) or algorithm.phases(self.task):
            return self.executor
        return ForwardExecutor() if self.device.type == "cuda" else Loop()

    def evaluate(
        self, context: Context, deliver: bool = False, metrics: Mapping[str, Metric] = NO_METRICS
    ) -> ClientTests | None:
        """Test every client's own model, and those of the states on the way of a stage."""
        if self.clients.federation.client_test is None:
            return None
        steps = context.algorithm.steps() if isinstance(context.algorithm, Stage) else {}
        on_the_way = {name: self._tests(replace(context, algorithm=step), NO_METRICS) for name, step in steps.items()}
        each = self._tests(context, metrics)
        return evaluation.client_tests(
            each,
            [len(rows) for rows in self.clients.federation.client_test],
            {name: [None if one is None else one.accuracy for one in tests] for name, tests in on_the_way.items()},
        )

    @cached_property
    def _validation_pool(self) -> Pool:
        rows = self.clients.federation.validation
        assert rows is not None, "asked only where clients have validation samples"
        return self.clients.pool.take(torch.from_numpy(np.concatenate(rows)).to(self.device))

    def validate(self, context: Context) -> Row | None:
        """Measure the global model on all validation samples, and the clients' own where their own are tested too."""
        rows, metrics = self.clients.federation.validation, self.experiment.metrics
        if rows is None:
            return None
        pool, bf16 = self._validation_pool, self.clients.bf16
        found = evaluate_global_model(context.algorithm, context.server, self.task, pool, bf16, metrics)
        tests = None
        if self.clients.federation.client_test is not None or found["test_loss"] is None:
            each = self._tests(context, metrics, (rows, self.clients.pool))
            tests = evaluation.client_tests(each, [len(own) for own in rows], {})
        return evaluation.validation_row(found, tests, metrics)

    def _tests(
        self, context: Context, metrics: Mapping[str, Metric], samples: tuple[list[Rows], Pool] | None = None
    ) -> list[ClientTest | None]:
        local = (samples or self.clients.test_rows)[0]
        tested = [k for k in self.clients.holders if len(local[k])]
        downlink = make_downlink(context.algorithm, context.server, tested, self.clients.task_of)
        work = (context.algorithm, downlink, context.states, context.round)
        found = client_model_tests(self.clients, *work, self.executor, metrics, samples)
        return [found.get(k) for k in range(len(local))]

    # -- work -------------------------------------------------------------------------------------
    def cohort(self, number: int) -> list[int]:
        """Return the clients that take part in a round."""
        return self.draw_cohort(number, self.sizes(self.clients.holders)).clients

    def jobs(
        self, algorithm: Algorithm, server: Tree, states: ClientStates, cohort: list[int], round: int
    ) -> list[Job]:
        """Return the work of an exchange, one job per architecture."""
        return self.clients.work(
            algorithm, make_downlink(algorithm, server, cohort, self.clients.task_of), states, round
        )

    def jobs_of_round(self, number: int) -> list[Job]:
        """Return the work of a round of training from the present state, one job per architecture.

        Where nobody takes part in that round, it is the work of all clients.
        """
        cohort = self.cohort(number) or self.clients.holders
        return self.jobs(self.clients.method, self.server, self.states, cohort, number)
