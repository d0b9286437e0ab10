"""The interface of a transport: the way to the clients and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import FedheadError
from fedhead.core.tree.schema import Schema
from fedhead.core.tree.tree import Tree
from fedhead.data.pool import Pool
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.evaluation import ClientTests
from fedhead.engine.experiment.experiment import Experiment
from fedhead.engine.policies import sampling
from fedhead.engine.policies.sampling import Cohort
from fedhead.executors.client.base import ExecutorReport
from fedhead.executors.client.reply_set import ReplySet
from fedhead.metrics.records import Row
from fedhead.metrics.registry import NO_METRICS, Metric
from fedhead.samplers.uniform import UniformSampler


@dataclass(frozen=True)
class Context:
    """Algorithm, states and round of an exchange or a test."""

    algorithm: Algorithm  # a method or a stage
    server: Tree  # the server's state
    states: Any  # the clients' states, as the transport holds them
    round: int  # number of the round


@dataclass(frozen=True)
class Received:
    """Replies and failures of an exchange."""

    replies: ReplySet
    bytes_down: int  # that the clients received, all together
    failures: dict[int, FedheadError] = field(default_factory=dict)  # why a client that was asked has no reply


@dataclass(frozen=True)
class Quorum:
    """With how few replies an exchange counts, and how often those that are missing are asked for."""

    replies: int = 1
    attempts: int = 1


class Transport(ABC):
    """A federation that can be trained: the server's state, and a way to the clients.

    It moves trees and says who is there; what is asked, what counts and what is recorded is the round loop's.
    """

    server: Tree  # the server's present state
    states: Any  # the clients' present states: themselves, or where sites store them; as `ClientStates`
    round: int = 0  # after which server and clients have these states; 0: before the first one
    test: Pool | None  # the global test set
    remote: bool = False  # whether clients on other machines hold their states, and store their final models
    portion: int | None = 16  # clients that are asked at a time where replies are added up; None: all
    compiled_from: int | None = None  # from which round on steps are compiled; None: they are not yet, or never are
    quorum: Quorum | None = None  # None: every client of a cohort must reply, and the first failure ends the run

    @property
    @abstractmethod
    def name(self) -> str:
        """What the records call it: the executor's name, or the network's."""

    @property
    @abstractmethod
    def clients(self) -> Clients:
        """The clients as the server knows them: tasks and architectures; in a simulation their data as well."""

    @property
    def experiment(self) -> Experiment:
        """What is run."""
        return self.clients.experiment

    def context(self, round: int) -> Context:
        """Return the method and the present states, for a round."""
        return Context(self.experiment.method, self.server, self.states, round)

    def report(self) -> ExecutorReport:
        """Return how long training has waited for compiling, and whether the last round's steps were compiled."""
        return ExecutorReport()

    def client_name(self, client: int) -> str:
        """Return what failures call a client."""
        return str(client)

    def log(self, line: str) -> None:  # noqa: B027 (optional)
        """Tell the operator of a run, where there is one, what has just happened."""

    @abstractmethod
    def check(self, stage: Stage) -> None:
        """Raise `BadInput` for a stage that can't be run here."""

    def begin(self) -> None:  # noqa: B027 (optional)
        """Get ready for the first exchange, after all checks."""

    def end_rounds(self) -> None:  # noqa: B027 (optional)
        """Release what was prepared for a round that does not come, as after a run was stopped; stages may follow."""

    def restore(self, server: Tree, kept: Mapping[int, Any], round: int) -> None:
        """Go on from the state of the server and of the clients after an earlier round."""
        self.round = round
        self.server = server
        for client, state in kept.items():
            self.states[client] = state

    @abstractmethod
    def present(self) -> list[int]:
        """Return the clients that can take part now, waiting for a quorum of them if need be."""

    @abstractmethod
    def sizes(self, present: Sequence[int]) -> dict[int, int]:
        """Return how many training samples each of these clients has, as far as the server knows."""

    def draw_cohort(self, round: int, sizes: Mapping[int, int]) -> Cohort:
        """Return the clients that take part in a round.

        Args:
            round: Number of the round, from 1.
            sizes: Training samples of each client that can take part, by its number.
        """
        experiment, seed = self.experiment, self.experiment.schedule.seed
        count = experiment.cohort_size(self.clients.task.clients)
        cohort = sampling.draw(experiment.sampler or UniformSampler(), round, count, sizes, seed)
        if experiment.stragglers is not None:
            cohort = sampling.drop_late(cohort, experiment.stragglers, round, seed)
        return cohort

    def why_absent(self, present: Sequence[int]) -> dict[int, str]:
        """Return why each client that is not among those `present` is away; none is in a simulation."""
        return {}

    @abstractmethod
    def exchange(self, context: Context, cohort: list[int]) -> Received:
        """Let the clients of a cohort work, and return what came back; writes to no state."""

    def schema(self, context: Context, client: int) -> Schema | None:
        """Return what a client's reply must look like; None: like that of the first client."""
        return None

    def validate(self, context: Context) -> Row | None:
        """Measure the models on the clients' validation samples; None where there are none."""
        return None

    @abstractmethod
    def evaluate(
        self, context: Context, deliver: bool = False, metrics: Mapping[str, Metric] = NO_METRICS
    ) -> ClientTests | None:
        """Test the clients' own models on their own test samples.

        Args:
            context: The method or the stage whose `personal_model` is tested, after the round that it names.
            deliver: Whether these models are final, so that clients on other machines store theirs.
            metrics: Further metrics, by name.

        Returns:
            What the tests gave, or None where no client has test samples.
        """
