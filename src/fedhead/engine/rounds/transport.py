"""Transport interface: how the server reaches the clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import FedheadError
from fedhead.core.tree.schema import Schema
from fedhead.core.tree.tree import Tree
from fedhead.data.pool import Pool
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.evaluation import ClientTests
from fedhead.engine.clients.private_rounds import PrivateClients
from fedhead.engine.experiment.experiment import Experiment
from fedhead.engine.policies import sampling
from fedhead.engine.policies.sampling import Cohort
from fedhead.executors.client.base import ExecutorReport
from fedhead.executors.client.reply_set import ReplySet
from fedhead.metrics.records import Row
from fedhead.metrics.registry import NO_METRICS, Metric
from fedhead.privacy.secure_sum.session import Message, Session
from fedhead.samplers.uniform import UniformSampler

if TYPE_CHECKING:
    from fedhead.privacy.secure_sum.identity import PublicKey

SecureStep = Literal["advertise", "share", "unmask"]


@dataclass(frozen=True)
class Context:
    """Algorithm, states and round of an exchange or a test."""

    algorithm: Algorithm  # method or stage
    server: Tree  # server state
    states: Any  # client states, as the transport stores them
    round: int  # number of the round


@dataclass(frozen=True)
class Received:
    """Replies and failures of an exchange."""

    replies: ReplySet
    bytes_down: int  # bytes received by all clients together
    failures: dict[int, FedheadError] = field(default_factory=dict)  # errors of queried clients without a reply
    form: Tree = field(default_factory=Tree)  # of masked replies: a reply before it is masked, on the meta device


@dataclass(frozen=True)
class Quorum:
    """Minimum number of replies of an exchange, and number of attempts to get them."""

    replies: int = 1
    attempts: int = 1


class Transport(ABC):
    """Base class of transports: server state, client states and communication with the clients.

    A transport sends and receives trees and lists the available clients. The round loop decides everything else:
    cohorts, checks, aggregation and records.
    """

    server: Tree  # current server state
    states: Any  # current client states, with the interface of `ClientStates`; on Flower, references to them
    best: Mapping[int, Any] = MappingProxyType({})  # states of the round that a callback keeps, as in `Kept.clients`
    round: int = 0  # last trained round; 0: none
    test: Pool | None  # global test set
    remote: bool = False  # whether clients on other machines store their states and final models
    portion: int | None = 16  # clients queried at a time if replies are summed; None: all
    compiled_from: int | None = None  # first round with compiled steps; None: none so far
    quorum: Quorum | None = None  # None: every client must reply, and the first failure ends the run

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in records: the executor's name, or the network's."""

    @property
    @abstractmethod
    def clients(self) -> Clients:
        """Clients as the server knows them: tasks and architectures; in a simulation also their data."""

    @property
    def experiment(self) -> Experiment:
        """Experiment of the run."""
        return self.clients.experiment

    def context(self, round: int) -> Context:
        """Return the context of a round: method and current states."""
        return Context(self.experiment.method, self.server, self.states, round)

    def report(self) -> ExecutorReport:
        """Return the compile time so far, and whether the last round's steps were compiled."""
        return ExecutorReport()

    def client_name(self, client: int) -> str:
        """Return a client's name for logs and records."""
        return str(client)

    def log(self, line: str) -> None:  # noqa: B027 (optional)
        """Report an event to the operator of the run."""

    @abstractmethod
    def check(self, stage: Stage) -> None:
        """Raise `BadInput` for a stage that this transport can't run."""

    def begin(self) -> None:  # noqa: B027 (optional)
        """Prepare for the first exchange, after all checks."""

    def end_rounds(self) -> None:  # noqa: B027 (optional)
        """Release resources that were prepared for the next round; stages may follow."""

    def restore(self, server: Tree, kept: Mapping[int, Any], round: int) -> None:
        """Restore server and client states of an earlier round."""
        self.round = round
        self.server = server
        for client, state in kept.items():
            self.states[client] = state

    @abstractmethod
    def present(self) -> list[int]:
        """Return the available clients; wait for a quorum if necessary."""

    @abstractmethod
    def sizes(self, present: Sequence[int]) -> dict[int, int]:
        """Return the number of training samples of each given client, as known to the server."""

    def draw_cohort(self, round: int, sizes: Mapping[int, int]) -> Cohort:
        """Return the cohort of a round.

        Args:
            round: Number of the round, from 1.
            sizes: Number of training samples of each available client.
        """
        experiment, seed = self.experiment, self.experiment.schedule.seed
        count, sampler = experiment.cohort_size(self.clients.task.clients), experiment.sampler or UniformSampler()
        private = self.clients.privacy
        if isinstance(private, PrivateClients):  # drawn from all clients: the probability must not depend on absences
            everyone = dict.fromkeys(range(self.clients.task.clients), 1)
            drawn = sampling.draw(sampler, round, count, everyone, private.cohort_seed(seed)).clients
            cohort = Cohort([k for k in drawn if k in sizes])
        else:
            cohort = sampling.draw(sampler, round, count, sizes, seed)
        if experiment.stragglers is not None:
            cohort = sampling.drop_late(cohort, experiment.stragglers, round, seed)
        return cohort

    def why_absent(self, present: Sequence[int]) -> dict[int, str]:
        """Return the reason for the absence of each client not in `present`; empty in a simulation."""
        return {}

    @abstractmethod
    def exchange(self, context: Context, cohort: list[int]) -> Received:
        """Query a cohort and return the replies, without writing any state."""

    # -- secure sums ------------------------------------------------------------------------------
    def public_keys(self) -> Mapping[int, PublicKey]:
        """Return the registered public keys of all clients."""
        raise NotImplementedError

    def secure_step(
        self, context: Context, session: Session, step: SecureStep, messages: Mapping[int, Message]
    ) -> tuple[dict[int, Message], dict[int, FedheadError]]:
        """Query clients for a step of a secure sum; return the answers and the errors of the other clients.

        Args:
            context: Context of the exchange.
            session: Session of the secure sum.
            step: Step without tensors.
            messages: Message to each client.
        """
        raise NotImplementedError

    def masked_exchange(self, context: Context, session: Session, messages: Mapping[int, Message]) -> Received:
        """Query clients for their masked vectors, in the entry `masked` of the replies.

        Args:
            context: Context of the exchange.
            session: Session of the secure sum.
            messages: Encrypted shares for each client.
        """
        raise NotImplementedError

    def schema(self, context: Context, client: int) -> Schema | None:
        """Return the expected schema of a client's reply; None: the schema of the first reply."""
        return None

    def validate(self, context: Context) -> Row | None:
        """Evaluate the models on the clients' validation samples; return None without validation samples."""
        return None

    @abstractmethod
    def evaluate(
        self, context: Context, deliver: bool = False, metrics: Mapping[str, Metric] = NO_METRICS
    ) -> ClientTests | None:
        """Evaluate the personal models on the clients' own test samples.

        Args:
            context: Method or stage whose `personal_model` is evaluated, with round and states.
            deliver: Whether these models are final, so that remote clients store theirs.
            metrics: Additional metrics by name.

        Returns:
            Results by client, or None if no client has test samples.
        """
