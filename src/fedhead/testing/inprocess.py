"""Flower grid inside one process, with serialization and optional faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedhead.data.federation.federation import Federation
from fedhead.data.inputs.input_spec import spec_inputs
from fedhead.data.pool import Pool
from fedhead.engine.clients.clients import Clients
from fedhead.engine.experiment.experiment import Experiment
from fedhead.flower.server.dry_run import DryRun
from fedhead.flower.server.timeouts import Timeouts
from fedhead.flower.server.transport import FlowerTransport
from fedhead.flower.site.client_handler import respond
from fedhead.flower.site.site import Site
from fedhead.flower.site.site_data import share
from fedhead.flower.site.site_metrics import computed_at_sites
from fedhead.flower.site.site_run import SiteRun
from fedhead.flower.wire.protocol import RunSpec
from fedhead.models.split_model import SplitModel

# Normally set by Flower's runtime; required to create messages.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

Fault = Callable[[Message, Callable[[], RecordDict]], "RecordDict | Error | None"]


@dataclass
class InProcess(Grid):
    """Grid whose nodes respond when messages are pulled; a `Fault` may corrupt a node's responses."""

    nodes: dict[int, Site]
    faults: dict[int, Fault] = field(default_factory=dict)
    _sent: dict[str, Message] = field(default_factory=dict)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Store messages and return their ids."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{len(self._sent)}"
            self._sent[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Yield the responses to stored messages."""
        for name in message_ids:
            message = self._sent[name]
            node = message.metadata.dst_node_id
            if node not in self.nodes:
                continue

            def honest(message: Message = message, node: int = node) -> RecordDict:
                # serialize and deserialize, as between machines
                return respond(through_bytes(message.content), self.nodes[node], watchdog=False)

            content = self.faults[node](message, honest) if node in self.faults else honest()
            if content is None:
                continue
            if isinstance(content, Error):
                reply = Message(content, reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID  # as an error of Flower itself
                yield reply
            else:
                yield Message(through_bytes(content), reply_to=message)

    def _unused(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("fedhead's messenger does not call it")

    set_run = create_message = send_and_receive = _unused
    run = property(_unused)


def through_bytes(content: RecordDict) -> RecordDict:
    """Return a message's content after a round trip through Flower's serialization."""
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

    return recorddict_from_proto(recorddict_to_proto(content))


@dataclass
class InProcessFederation:
    """Federation as sites on an in-process grid, with the experiment of its simulation."""

    federation: Federation
    models: dict[str, SplitModel]  # named models; the first one is the recipe's
    experiment: Experiment
    folder: Path
    own: dict[int, str] = field(default_factory=dict)  # name of a client's own model
    metrics: list[str] = field(default_factory=list)  # metrics of the recipe
    identity: str = "ab" * 8  # identity of the run
    min_class_count: int = 1  # minimum class count of every site
    dtype: torch.dtype = torch.float32  # data type of the models' weights

    def spec(self) -> RunSpec:
        """Return the run's specification."""
        fed = self.federation
        return RunSpec(
            experiment=self.identity,
            recipe={"seed": 0, "metrics": self.metrics, "objective": fed.objective},
            sites=[f"site-{k}" for k in range(len(fed))],
            classes=fed.classes,
            **spec_inputs(fed.train.x, fed.transform),
        )

    def site(self, k: int, name: str | None = None) -> Site:
        """Return the site of client k."""

        @cache  # as a site does
        def run_of(number: int) -> SiteRun:
            model = self.models[self.own.get(number, next(iter(self.models)))]
            experiment = self.experiment.with_models([model], [0] * len(self.federation))
            clients = Clients(experiment, share(self.federation, number), dtype=self.dtype, all_here=False)
            clients.leave_out_classes_below(self.min_class_count)
            return SiteRun(clients, computed_at_sites(self.metrics, self.federation.objective))

        overrides = {"model": self.own[k]} if k in self.own else {}
        return Site(name or f"site-{k}", lambda spec, number: run_of(number), self.folder / "state", overrides)

    def grid(self) -> InProcess:
        """Return a grid with one node per client."""
        return InProcess({100 + k: self.site(k) for k in range(len(self.federation))})

    def transport(self, grid: InProcess, said: list[str] | None = None, **timeouts: Any) -> FlowerTransport:
        """Return a transport over a grid; its log is appended to `said`."""
        spec, names = self.spec(), list(self.models)

        def choices(overrides: Any) -> list[SplitModel]:
            return [self.models[overrides.get("model", names[0])]]

        fed = self.federation
        test = None if fed.test is None else Pool(fed.test, fed.transform, dtype=self.dtype)
        waits = Timeouts(**{"quorum": 1, "join_seconds": 0.2, "round_seconds": 1.0, **timeouts})
        dry_run = DryRun(spec, self.experiment, choices, fed.public, dtype=self.dtype)
        log = (said if said is not None else []).append
        transport = FlowerTransport(grid, spec, dry_run, waits, test, log)
        transport.poll = 0.001
        return transport
