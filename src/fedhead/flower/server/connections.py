"""Connections to the sites of a run: nodes that join, their names and keys, requests and the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedhead.core.system.errors import FedheadError
from fedhead.core.tree.tree import Tree
from fedhead.flower import ledger
from fedhead.flower.server import messaging
from fedhead.flower.server.messaging import Answer, Failure, Outgoing
from fedhead.flower.server.node_keys import node_keys
from fedhead.flower.server.node_registry import NodeRegistry
from fedhead.flower.server.timeouts import Timeouts
from fedhead.flower.wire.protocol import TRAIN, Request, Response, RunSpec

if TYPE_CHECKING:
    from flwr.serverapp import Grid


class SiteConnections:
    """Sites that join a run by answering a first request.

    Args:
        grid: Flower's grid.
        spec: Specification of the run.
        timeouts: Timeouts and quorum.
        log: Called with each message for the operator.
        keys: Public keys by site; a node with another key is refused. Empty: no authentication.
        record: Appends entries to the counterpart of the sites' ledgers.
    """

    poll = 0.2  # seconds between polls
    kind: ClassVar[Literal["hello", "statistics"]] = "hello"  # of the first request

    def __init__(
        self,
        grid: Grid,
        spec: RunSpec,
        timeouts: Timeouts,
        log: Callable[[str], None] = print,
        keys: Mapping[str, bytes] | None = None,
        record: Callable[..., None] | None = None,
    ):
        self.grid, self.spec, self.timeouts = grid, spec, timeouts
        self.nodes = NodeRegistry(list(spec.sites), keys or {})
        self._log, self._record = log, record

    def log(self, line: str) -> None:
        """Log a message for the operator."""
        self._log(line)

    def _admit(self, response: Response) -> None:
        """Use the answer of a site to the first request; raise `FedheadError` to refuse it."""

    def _gather(self) -> list[int]:
        begin = time.monotonic()
        while True:
            present = self._connected()
            if len(present) == len(self.spec.sites):
                return present
            training = self._training(present)
            enough = len(training) >= self.timeouts.quorum and self.nodes.complete(present)
            if enough or time.monotonic() - begin > self.timeouts.join_seconds:
                break
            time.sleep(self.poll)
        missing = ", ".join(name for k, name in enumerate(self.spec.sites) if k not in present)
        why = "".join(f"; {failure.line}" for failure in self.nodes.refused.values())
        if len(training) < self.timeouts.quorum:
            of_sites = any(failure.site for failure in self.nodes.refused.values())
            fix = "; correct these sites, then resume" if of_sites else ""
            but = "" if training == present else f" (besides {self.spec.leave_out_site}, which only tests)"
            raise FedheadError(
                f"{len(training)} of {len(self.spec.sites)} sites are there after {self.timeouts.join_seconds:g} s{but}"
                f", at least {self.timeouts.quorum} are needed; missing: {missing}{why}{fix}"
            )
        self.log(f"going on without {missing}{why}")
        return present

    def _training(self, present: list[int]) -> list[int]:
        return [k for k in present if self.spec.sites[k] != self.spec.leave_out_site]

    def _connected(self) -> list[int]:
        connected = set(self.grid.get_node_ids())
        unknown_nodes = self.nodes.unknown_nodes(connected)
        if unknown_nodes:
            self._greet(unknown_nodes, connected)
        return self.nodes.present(connected)

    def _greet(self, nodes: list[int], connected: set[int]) -> None:
        """Request the names and data summaries of nodes and register them."""
        request = Request(self.kind, self.spec, self.timeouts.join_seconds)
        responses: dict[int, Response] = {}
        keys = node_keys(self.grid) if self.nodes.keys else {}
        outgoing = {node: Outgoing(node, request) for node in nodes}

        def refuse(node: int, failure: Failure) -> None:
            self.log(self.nodes.refuse(node, failure, keys.get(node)))

        for node, reply in self._send(outgoing, self.timeouts.join_seconds).items():
            if isinstance(reply, Failure):
                refuse(node, reply)
            elif reply[0].site not in self.spec.sites:
                refuse(node, Failure(f"it is {reply[0].site!r}, which is not in the list of sites"))
            elif (refusal := self.nodes.refusal(node, reply[0].site, keys, connected)) is not None:
                refuse(node, refusal)
            elif (why := self._mismatch(self.spec.number(reply[0].site), request, *reply)) is not None:
                refuse(node, Failure(why, reply[0].site))
            else:
                responses[node] = reply[0]
        names = [response.site for response in responses.values()]
        for node, response in responses.items():
            if names.count(response.site) > 1:
                why = f"two nodes call themselves {response.site}: give each site its own name"
                refuse(node, Failure(why, response.site))
                continue
            try:
                self._admit(response)
            except FedheadError as error:
                refuse(node, Failure(str(error), response.site))
                continue
            moved = self.nodes.enter(node, response)
            if self.kind == "hello":
                self.log(moved or f"site {response.site} is here with {response.samples} samples")

    def _send(self, outgoing: Mapping[int, Outgoing], seconds: float) -> dict[int, Answer | Failure]:
        """Send requests, wait for the answers, and record both in the ledger."""
        answers = messaging.ask(self.grid, self.poll, outgoing, seconds)
        if self._record is not None:
            self._record(*(_ledger_entry(message, answers[key]) for key, message in outgoing.items()))
        return answers

    def _mismatch(self, k: int, request: Request, response: Response, trees: Mapping[str, Tree]) -> str | None:
        """Return why a response does not match its request; None if it does."""
        label, round = request.algorithm, request.round
        if (response.experiment, response.algorithm, response.round) != (self.spec.experiment, label, round):
            return f"it answered {where(response.algorithm, response.round)}, the request was for {where(label, round)}"
        needed = {"work": {"send"}, "model": {"model"}}.get(request.kind, set())
        if response.site != self.spec.sites[k] or trees.keys() - {"sums"} != needed:
            return "its response is not that of this site"
        return None


def _ledger_entry(message: Outgoing, answer: Answer | Failure) -> dict[str, Any]:
    asked = {"node": message.node, **ledger.describe_request(message.request, message.trees)}
    if isinstance(answer, Failure):
        return {"site": answer.site, **asked, "decision": f"failed: {answer.reason}"}
    return {"site": answer[0].site, **asked, "decision": "received", **ledger.describe_response(*answer)}


def where(label: str, round: int) -> str:
    """Return a round or stage in messages."""
    return f"round {round}" if label == TRAIN else f"stage {label}"
