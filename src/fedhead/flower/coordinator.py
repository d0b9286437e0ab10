"""The server across machines: the rounds and the stages over a Flower grid, with quorum, deadlines and the reply_check.

The server's half of an algorithm is the simulation's (`engine.server`), and so are the figures; what is added here is
all that can go wrong between machines. A reply that is missing, late, refused or not finite is a failure of its site,
named in the round's figures, and is never aggregated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedhead.algorithm.base import Algorithm, Method, Stage
from fedhead.core.errors import BadInput, FedheadError
from fedhead.core.tree import Tree
from fedhead.data.pool import Pool
from fedhead.engine import evaluation, reply_check, sampling
from fedhead.engine import server as servers
from fedhead.engine.clients import Clients
from fedhead.flower.dry_run import DryRun
from fedhead.flower.messaging import Failure, Messenger, Outgoing
from fedhead.flower.node_registry import NodeRegistry
from fedhead.flower.protocol import TRAIN, Request, Response, RunSpec

if TYPE_CHECKING:
    from flwr.serverapp import Grid

Row = dict[str, Any]
GRACE = 5.0  # seconds that the server waits longer than it tells the sites: an answer in time must also travel


@dataclass(frozen=True)
class Timeouts:
    """How long the server waits, and how few sites are enough."""

    quorum: int = 1  # the fewest sites with which a round counts
    round_seconds: float = 600.0  # for a site's answer to any order
    join_seconds: float = 120.0  # for all sites to come, and for a quorum to come back
    attempts: int = 3  # at a round without a quorum
    poll: float = 0.1  # seconds between polls


@dataclass
class Progress:
    """From where the server goes on after a round."""

    round: int
    server: Tree
    accepted: list[int]  # by client, the last round in which its reply counted
    history: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What a stage made of the trained federation."""

    server: Tree
    metrics: Row


@dataclass(frozen=True)
class Received:
    """The replies of an exchange that passed the checks, and why others did not."""

    sent: dict[int, Tree]
    samples: dict[int, float]
    failed: dict[int, str]


class Coordinator:
    """The server's loop over a grid."""

    def __init__(
        self,
        grid: Grid,
        terms: RunSpec,
        dry_run: DryRun,
        timeouts: Timeouts,
        test: Pool | None = None,
        say: Callable[[str], None] = print,
    ):
        self.grid, self.terms, self.timeouts, self.test, self.say = grid, terms, timeouts, test, say
        self.dry_run = dry_run
        self.messenger = Messenger(grid, timeouts.poll)
        self.nodes = NodeRegistry(list(terms.sites))
        clients = dry_run.clients
        self.progress = Progress(
            0, clients.method.init_server(clients.initial[0], clients.task), [0] * len(terms.sites)
        )

    @property
    def clients(self) -> Clients:
        """The clients as the server knows them: architectures and tasks, no data."""
        return self.dry_run.clients

    # -- the run ----------------------------------------------------------------------------------
    def run(
        self,
        method: Method,
        stages: Sequence[Stage],
        evaluate_every: int = 1,
        on_round: Callable[[Progress], None] = lambda _: None,
    ) -> dict[str, Outcome]:
        """All rounds that are still to come, then the stages; what each stage made is returned."""
        for stage in stages:
            if stage.earlier() is not None:
                raise BadInput(f"stage {stage.name} is two stages in one, for simulations: sites run them one by one")
        self.gather()
        rounds = self.clients.task.rounds
        for number in range(self.progress.round + 1, rounds + 1):
            last = number == rounds
            evaluate_now = number % evaluate_every == 0 or last
            row = self.round(method, number, evaluate_now, deliver=last and not stages)
            self.progress.history.append(row)
            self.progress.round = number
            on_round(self.progress)
        return {stage.name: self.stage(stage) for stage in stages}

    def round(self, method: Method, number: int, evaluate_now: bool, deliver: bool = False) -> Row:
        """One round of training; the server's state moves on only if a quorum of replies passed the checks."""
        begin, task = time.perf_counter(), self.clients.task

        def cohort(present: list[int]) -> list[int]:
            return sampling.sample_cohort(task.seed, number, present, task.clients, task.participation)

        row: Row = {"round": number, "lr": self.clients.lr(number)}
        received, traffic = self._exchange(method, self.progress.server, number, TRAIN, cohort)
        server = servers.aggregate(method, self.progress.server, received.sent, received.samples, task)
        for k in received.sent:
            self.progress.accepted[k] = number
        self.progress.server = server
        row |= traffic
        if received.failed:
            row["failed"] = {self.terms.sites[k]: why for k, why in received.failed.items()}
        if evaluate_now:
            row |= servers.figures(method, server, self.clients.task, self.test)
            row |= self._own_figures(method, server, number, TRAIN, set(), deliver)
        row["seconds"] = time.perf_counter() - begin
        return row

    def stage(self, stage: Stage) -> Outcome:
        """One more exchange with every site that is there; the trained state stays as it is."""
        begin, number = time.perf_counter(), self.clients.task.rounds + 1
        self.dry_run.check(stage)
        received, metrics = self._exchange(stage, self.progress.server, number, stage.name, lambda present: present)
        server = servers.aggregate(stage, self.progress.server, received.sent, received.samples, self.clients.task)
        if received.failed:
            metrics["failed"] = {self.terms.sites[k]: why for k, why in received.failed.items()}
        metrics |= servers.figures(stage, server, self.clients.task, self.test)
        metrics |= self._own_figures(stage, server, number, stage.name, set(received.sent), deliver=True)
        metrics["seconds"] = time.perf_counter() - begin
        return Outcome(server, metrics)

    # -- who is there -----------------------------------------------------------------------------
    def gather(self) -> list[int]:
        """Wait for the sites: all of them, or after `join_seconds` a quorum; their numbers."""
        begin = time.monotonic()
        while True:
            present = self._present()
            if len(present) == len(self.terms.sites):
                return present
            enough = len(present) >= self.timeouts.quorum and self.nodes.complete(present)
            if enough or time.monotonic() - begin > self.timeouts.join_seconds:
                break
            time.sleep(self.timeouts.poll)
        missing = ", ".join(name for k, name in enumerate(self.terms.sites) if k not in present)
        why = "".join(f"; {failure.reason}" for failure in self.nodes.refused.values())
        if len(present) < self.timeouts.quorum:
            raise FedheadError(
                f"{len(present)} of {len(self.terms.sites)} sites are there after {self.timeouts.join_seconds:g} s, "
                f"at least {self.timeouts.quorum} are needed; missing: {missing}{why}"
            )
        self.say(f"going on without {missing}{why}")
        return present

    def _present(self) -> list[int]:
        connected = set(self.grid.get_node_ids())
        unknown_nodes = self.nodes.unknown_nodes(connected)
        if unknown_nodes:
            self._greet(unknown_nodes)
        return self.nodes.present(connected)

    def _greet(self, nodes: list[int]) -> None:
        """Ask nodes which site they are and what they hold."""
        order = Request("hello", self.terms, self.timeouts.join_seconds)
        orders = {node: Outgoing(node, order) for node in nodes}
        found: dict[int, Response] = {}
        for node, reply in self.messenger.ask(orders, self.timeouts.join_seconds).items():
            if isinstance(reply, Failure):
                self._refuse(node, reply)
            elif reply[0].site not in self.terms.sites:
                self._refuse(node, Failure(f"it is {reply[0].site!r}, which is not in the list of sites"))
            else:
                found[node] = reply[0]
        names = [answer.site for answer in found.values()]
        for node, answer in found.items():
            if names.count(answer.site) > 1:
                why = f"two nodes call themselves {answer.site}: give each site a name of its own"
                self._refuse(node, Failure(why, answer.site))
                continue
            try:
                self.dry_run.assign(self.terms.number(answer.site), answer.model)
            except FedheadError as error:
                self._refuse(node, Failure(f"site {answer.site}: {error}", answer.site))
                continue
            notice = self.nodes.enter(node, answer)
            self.say(notice or f"site {answer.site} is here with {answer.samples} samples")

    def _refuse(self, node: int, failure: Failure) -> None:
        self.nodes.refused[node] = failure
        self.say(f"node {node} is left out: {failure.reason}")

    # -- exchanges --------------------------------------------------------------------------------
    def _exchange(
        self, algorithm: Algorithm, server: Tree, round: int, label: str, select: Callable[[list[int]], list[int]]
    ) -> tuple[Received, Row]:
        """Downlink, wait, check; what is missing of a quorum is asked for again."""
        received, down = Received({}, {}, {}), 0
        cohort: list[int] = []
        for attempt in range(1, self.timeouts.attempts + 1):
            present = self._present()
            if len(present) < self.timeouts.quorum:
                present = self.gather()
            cohort = cohort or select(present)
            asked = [k for k in cohort if k not in received.sent and k in present]
            downlink = servers.make_downlink(algorithm, server, asked, self.clients.task_of)
            self._collect(algorithm, downlink, round, label, received)
            down += downlink.nbytes()
            received.failed.update({k: "not connected" for k in cohort if k not in present and k not in received.sent})
            if len(received.sent) >= max(1, min(self.timeouts.quorum, len(cohort))):
                up = sum(sent.nbytes for sent in received.sent.values())
                return received, {"bytes_up": up, "bytes_down": down, "participants": len(received.sent)}
            cohort = [*received.sent, *(k for k in select(self._present()) if k not in received.sent)]
            self.say(f"{_where(label, round)}, attempt {attempt}: only {len(received.sent)} replies that count")
        reasons = "; ".join(f"{self.terms.sites[k]}: {why}" for k, why in sorted(received.failed.items()))
        raise FedheadError(
            f"{_where(label, round)} has no quorum: {len(received.sent)} of {self.timeouts.quorum} replies after "
            f"{self.timeouts.attempts} attempts ({reasons}); fix the sites, then resume"
        )

    def _collect(
        self, algorithm: Algorithm, downlink: servers.Downlink, round: int, label: str, into: Received
    ) -> None:
        orders = {
            k: Outgoing(
                self.nodes.nodes[self.terms.sites[k]],
                Request("work", self.terms, self.timeouts.round_seconds, round, label, self.progress.accepted[k]),
                {"broadcast": downlink.broadcast, "per_client": own},
            )
            for k, own in downlink.per_client.items()
        }
        for k, reply in self.messenger.ask(orders, self.timeouts.round_seconds + GRACE).items():
            into.failed.pop(k, None)
            why = reply.reason if isinstance(reply, Failure) else self._fault(algorithm, k, round, label, *reply)
            if isinstance(reply, Failure) or why is not None:
                into.failed[k] = str(why)
                self.say(f"{_where(label, round)}: site {self.terms.sites[k]} does not count: {why}")
            else:
                into.sent[k], into.samples[k] = reply[1]["send"], float(reply[0].samples)

    def _fault(
        self, algorithm: Algorithm, k: int, round: int, label: str, answer: Response, trees: Mapping[str, Tree]
    ) -> str | None:
        """Why a reply can't be aggregated, None if it can."""
        if (answer.experiment, answer.algorithm, answer.round) != (self.terms.experiment, label, round):
            return f"it answered {_where(answer.algorithm, answer.round)}, asked was {_where(label, round)}"
        if answer.site != self.terms.sites[k] or answer.samples < 1 or trees.keys() != {"send"}:
            return "its answer is not that of this site"
        try:
            reply_check.check(trees["send"], self.dry_run.schema(algorithm, k, self.progress.server), k, round)
        except FedheadError as error:
            return str(error)
        return None

    def _own_figures(
        self, algorithm: Algorithm, server: Tree, round: int, label: str, staged: set[int], deliver: bool
    ) -> Row:
        """The accuracies of the sites' own models on their own test samples, and the models to the sites at the end."""
        present = self._present()
        asked = [k for k in present if deliver or self.nodes.tests(k)]
        downlink = servers.make_downlink(algorithm, server, asked, self.clients.task_of)
        orders = {
            k: Outgoing(
                self.nodes.nodes[self.terms.sites[k]],
                Request(
                    "test",
                    self.terms,
                    self.timeouts.round_seconds,
                    round,
                    label,
                    self.progress.accepted[k],
                    staged=k in staged,
                    deliver=deliver,
                ),
                {"broadcast": downlink.broadcast, "per_client": downlink.per_client[k]},
            )
            for k in asked
        }
        each: list[float | None] = [None] * len(self.terms.sites)
        steps: dict[str, list[float | None]] = {}
        for k, reply in self.messenger.ask(orders, self.timeouts.round_seconds + GRACE).items() if orders else ():
            if isinstance(reply, Failure):
                self.say(f"{_where(label, round)}: site {self.terms.sites[k]} was not tested: {reply.reason}")
                continue
            each[k] = reply[0].accuracy
            for name, value in reply[0].steps.items():
                steps.setdefault(name, []).append(value)
        if not any(self.nodes.tests(k) for k in range(len(each))):
            return {"personal": None, "clients": None}
        row: Row = {"personal": evaluation.mean(each), "clients": each}
        if steps:
            row["steps"] = {name: evaluation.mean(values) for name, values in steps.items()}
        return row


def _where(label: str, round: int) -> str:
    return f"round {round}" if label == TRAIN else f"stage {label}"
