"""Simulation: all clients and the server on one machine, trained by an executor."""

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
from fedhead.core.system.errors import FedheadError
from fedhead.core.system.log import logger, warn_once
from fedhead.core.tree.tree import Tree
from fedhead.data.partitions.allocation import Indices
from fedhead.data.pool import Pool
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.evaluation import ClientTest, ClientTests
from fedhead.engine.clients.server import evaluate_global_model, initial_server, make_downlink
from fedhead.engine.experiment import compatibility, training_objective
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, InputSpec
from fedhead.engine.rounds.client_model_tests import client_model_tests
from fedhead.engine.rounds.simulated_secure_sum import SimulatedSecureSum
from fedhead.engine.rounds.transport import Context, Received, SecureStep, Transport
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
from fedhead.privacy.secure_sum.session import Message, Session

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation
    from fedhead.privacy.secure_sum.identity import PublicKey


class Simulation(Transport):
    """Transport that trains all clients of a federation on this machine.

    Args:
        experiment: Experiment to run.
        federation: Data of all clients.
        compute: Device, executor and precision. `begin` selects an executor given by its name.
        dtype: Data type of the models' weights.

    Raises:
        BadInput: If components of the experiment are incompatible with each other or with the data.
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
                f"batch_size={largest} trains the same in less time"
            )
        self.server = initial_server(experiment.method, self.clients.initial[0], self.task)
        self.states: ClientStates = ClientStates(self.clients.initial_state)
        if device.type == "cuda":
            self.portion = None  # query all at once, so that stacks can group clients of similar size
            if experiment.cohort_size(len(federation)) < len(federation):
                self.states = HostStates(self.clients.initial_state, device)  # saves GPU memory
        self._wanted, self._compile = executor, select.check_compile(compute.compile)
        self.executor: Executor = executor if isinstance(executor, Executor) else Loop()

    def using(self, executor: Executor) -> Self:
        """Set the executor that trains the clients, and return the simulation."""
        self._wanted = self.executor = executor
        return self

    # -- transport --------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """Name of the executor."""
        return self.executor.name

    @property
    def clients(self) -> Clients:
        """All clients of the federation."""
        return self._clients

    @property
    def device(self) -> torch.device:
        """Device that the clients train on."""
        return self.clients.device

    @property
    def task(self) -> Task:
        """Task of the first architecture, for fields that all architectures share."""
        return self.clients.task

    def report(self) -> ExecutorReport:
        """Return the executor's report."""
        return self.executor.report()

    def check(self, stage: Stage) -> None:
        """Raise `BadInput` if a stage is incompatible with the models or the data."""
        federation, tasks = self.clients.federation, self.clients.tasks
        training_objective.check(stage, federation.objective, self.task.local)
        stage.check([task.model for task in tasks], federation)
        stage.check_counts(torch.as_tensor(federation.counts()).sum(0))
        for task in tasks:
            compatibility.check_trained(stage, self.experiment.method, task)

    def log(self, line: str) -> None:
        """Log a warning."""
        logger.warning(line)

    def begin(self) -> None:
        """Select the executor."""
        self.executor = select.executor(self._wanted, self, compile=self._compile)

    def end_rounds(self) -> None:
        """Release batches and states that were prepared for the next round."""
        self.clients.batches.forget()
        if isinstance(self.states, HostStates):
            self.states.release_prefetched()

    def restore(self, server: Tree, kept: Mapping[int, Tree], round: int) -> None:
        """Restore server and client states, on this simulation's device."""
        on_host = isinstance(self.states, HostStates)
        clients = {k: state if on_host else state.to(self.device) for k, state in kept.items()}
        super().restore(server.to(self.device), clients, round)

    def present(self) -> list[int]:
        """Return the clients that hold data."""
        return list(self.clients.holders)

    def sizes(self, present: Sequence[int]) -> dict[int, int]:
        """Return the number of training samples of each given client."""
        return {k: self.task.sizes[k] for k in present}

    def exchange(self, context: Context, cohort: list[int]) -> Received:
        """Train a cohort with the executor, one job per architecture."""
        algorithm, round = context.algorithm, context.round
        downlink = make_downlink(algorithm, context.server, cohort, self.clients.task_of)
        executor = self._executor_for(algorithm)
        jobs = self.clients.work(algorithm, downlink, context.states, round)
        if self.compiled_from is not None and isinstance(algorithm, Method):
            jobs = [replace(job, compiled=round >= self.compiled_from) for job in jobs]
        replies = executor.run(jobs)
        if algorithm.protected and isinstance(algorithm, Stage):
            replies = replies.map_sent(lambda k, sent: algorithm.add_noise(sent, k, self.clients.task_of(k)))
        if isinstance(algorithm, Method):
            self._prepare_next(context, cohort, replies.whole_stacks)
        known = sum(k in context.states for k in cohort) * self.clients.frozen_part(downlink.broadcast).nbytes
        return Received(replies, downlink.nbytes() - known)

    def public_keys(self) -> Mapping[int, PublicKey]:
        """Return the public keys of the clients, which were made for this simulation."""
        return self._secure.registered

    def secure_step(
        self, context: Context, session: Session, step: SecureStep, messages: Mapping[int, Message]
    ) -> tuple[dict[int, Message], dict[int, FedheadError]]:
        """Let the clients take a step of a secure sum."""
        return self._secure.step(session, step, messages), {}

    def masked_exchange(self, context: Context, session: Session, messages: Mapping[int, Message]) -> Received:
        """Train clients with the executor and mask their replies."""
        return self._secure.mask(context.algorithm, self.exchange(context, list(messages)), messages)

    @cached_property
    def _secure(self) -> SimulatedSecureSum:
        return SimulatedSecureSum(self.clients)

    def _prepare_next(self, context: Context, training: list[int], tables: bool) -> None:
        """Prepare the next round while a GPU trains this one; on a CPU this would save no time.

        Args:
            context: States and number of this round. After the last round nothing is prepared.
            training: Clients of this round.
            tables: Whether to build the index tables of the next round's batches, for a stack of all clients.
        """
        states, following = context.states, context.round + 1
        has_next = context.round < self.task.rounds
        if isinstance(states, HostStates):
            states.prefetch(self.cohort(following) if has_next and states.hold_tensors else [], training)
        if self.device.type == "cuda":
            self.clients.draw_ahead(self.cohort(following) if has_next else [], following, tables)

    def _executor_for(self, algorithm: Algorithm) -> Executor:
        """Return the executor for an algorithm; stages without training need only forward passes."""
        if isinstance(algorithm, Method) or algorithm.phases(self.task):
            return self.executor
        return ForwardExecutor() if self.device.type == "cuda" else Loop()

    def evaluate(
        self, context: Context, deliver: bool = False, metrics: Mapping[str, Metric] = NO_METRICS
    ) -> ClientTests | None:
        """Evaluate all personal models, and those of a stage's intermediate steps."""
        if self.clients.federation.client_test is None:
            return None
        steps = context.algorithm.steps() if isinstance(context.algorithm, Stage) else {}
        step_tests = {name: self._tests(replace(context, algorithm=step), NO_METRICS) for name, step in steps.items()}
        tests = self._tests(context, metrics)
        return evaluation.client_tests(
            tests,
            [len(indices) for indices in self.clients.federation.client_test],
            {name: [None if test is None else test.accuracy for test in tests] for name, tests in step_tests.items()},
        )

    @cached_property
    def _validation_pool(self) -> Pool:
        indices = self.clients.federation.validation
        assert indices is not None, "asked only where clients have validation samples"
        return self.clients.pool.take(torch.from_numpy(np.concatenate(indices)).to(self.device))

    def validate(self, context: Context) -> Row | None:
        """Evaluate the global model on all validation samples, and personal models if the run tests them."""
        indices, metrics = self.clients.federation.validation, self.experiment.metrics
        if indices is None:
            return None
        pool, bf16 = self._validation_pool, self.clients.bf16
        global_row = evaluate_global_model(context.algorithm, context.server, self.task, pool, bf16, metrics)
        tests = None
        if self.clients.federation.client_test is not None or global_row["test_loss"] is None:
            client_tests = self._tests(context, metrics, (indices, self.clients.pool))
            tests = evaluation.client_tests(client_tests, [len(each) for each in indices], {})
        return evaluation.validation_row(global_row, tests, metrics)

    def _tests(
        self, context: Context, metrics: Mapping[str, Metric], samples: tuple[list[Indices], Pool] | None = None
    ) -> list[ClientTest | None]:
        local = (samples or self.clients.test_indices)[0]
        tested = [k for k in self.clients.holders if len(local[k])]
        downlink = make_downlink(context.algorithm, context.server, tested, self.clients.task_of)
        exchange = (context.algorithm, downlink, context.states, context.round)
        tests = client_model_tests(self.clients, *exchange, self.executor, metrics, samples)
        return [tests.get(k) for k in range(len(local))]

    # -- work -------------------------------------------------------------------------------------
    def cohort(self, number: int) -> list[int]:
        """Return the cohort of a round."""
        return self.draw_cohort(number, self.sizes(self.clients.holders)).clients

    def jobs(
        self, algorithm: Algorithm, server: Tree, states: ClientStates, cohort: list[int], round: int
    ) -> list[Job]:
        """Return the jobs of an exchange, one per architecture."""
        return self.clients.work(
            algorithm, make_downlink(algorithm, server, cohort, self.clients.task_of), states, round
        )

    def jobs_of_round(self, number: int) -> list[Job]:
        """Return the jobs of a training round from the current states, one per architecture.

        If the round's cohort is empty, the jobs cover all clients.
        """
        cohort = self.cohort(number) or self.clients.holders
        return self.jobs(self.clients.method, self.server, self.states, cohort, number)
