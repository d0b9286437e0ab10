"""A site: it carries out the server's orders on its own data, and decides what leaves it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedhead.algorithm.base import Algorithm, Stage
from fedhead.core.errors import BadInput, unknown
from fedhead.core.schema import schema
from fedhead.core.tree import Tree
from fedhead.engine import reply_check
from fedhead.engine.client_states import ClientStates
from fedhead.engine.clients import Clients
from fedhead.engine.server import Downlink, make_downlink
from fedhead.executors.loop import Loop
from fedhead.flower.protocol import TRAIN, Request, Response, RunSpec, version
from fedhead.flower.site_store import SiteStore


@dataclass(frozen=True)
class Bench:
    """Where a site works: its client (among the federation's numbers) and the stages after the rounds."""

    clients: Clients
    stages: Sequence[Stage] = ()

    def algorithm(self, name: str) -> Algorithm:
        """The algorithm of a name: the rounds', or a stage's."""
        found = {TRAIN: self.clients.method, **{stage.name: stage for stage in self.stages}}
        if name not in found:
            raise unknown("algorithm", name, found)
        return found[name]


Commit = Callable[[], None]  # what is done once the answer is ready to go


@dataclass(frozen=True)
class Site:
    """One site: its name, how it makes its bench for a run, and where it keeps its state."""

    name: str
    bench: Callable[[RunSpec, int], Bench]  # from the run's terms and the site's number
    state: Path
    model: Mapping[str, Any] = field(default_factory=dict)  # recipe keys of an architecture of its own

    def answer(self, order: Request, trees: Mapping[str, Tree]) -> tuple[Response, dict[str, Tree], Commit]:
        """Carry out an order: the answer, what is sent with it, and what to store once both are packed."""
        k = order.terms.number(self.name)
        bench = self.bench(order.terms, k)
        rows, local = bench.clients.federation.rows[k], bench.clients.federation.client_test
        if not len(rows):
            raise BadInput(
                f"site {self.name} holds no training samples: give it some, or take it out of the server's list"
            )
        answer = Response(
            site=self.name,
            fedhead=version(),
            experiment=order.terms.experiment,
            round=order.round,
            algorithm=order.algorithm,
            samples=len(rows),
            tests=0 if local is None else len(local[k]),
            model=dict(self.model),
        )
        if order.kind == "hello":
            return answer, {}, _nothing
        return self._work(order, trees, bench, answer, k)

    def _work(
        self, order: Request, trees: Mapping[str, Tree], bench: Bench, answer: Response, k: int
    ) -> tuple[Response, dict[str, Tree], Commit]:
        clients = bench.clients
        algorithm = bench.algorithm(order.algorithm)
        downlink = Downlink(trees["broadcast"].to(clients.device), {k: trees["per_client"].to(clients.device)})
        _check_mail(downlink, algorithm, clients, k, order.round)
        store = SiteStore(self.state, order.terms.experiment, self.name)
        memory = ClientStates(
            clients.initial_state, {k: self._state(order, store, clients.initial_state(k)).to(clients.device)}
        )
        if order.kind == "test":
            return _test(order, algorithm, downlink, memory, clients, answer, store, k)
        (job,) = clients.work(algorithm, downlink, memory, order.round)
        (reply,) = Loop().run(job)
        reply_check.check(reply.send, None, k, order.round)  # what has diverged stays here, and is not kept either
        reply_check.check(reply.keep, None, k, order.round)

        def commit() -> None:
            if order.algorithm == TRAIN:
                store.keep_state(order.round, reply.keep, order.accepted)
            else:
                store.keep_stage_state(order.algorithm, reply.keep)

        return answer, {"send": reply.send}, commit

    def _state(self, order: Request, store: SiteStore, initial: Tree) -> Tree:
        """The client's state that the server counts on."""
        if order.kind == "test" and order.staged:
            found = store.stage_state(order.algorithm)
        elif order.accepted == 0:
            return initial
        else:
            found = store.state(order.accepted)
        if found is None and initial:
            after = f"stage {order.algorithm}" if order.staged else f"round {order.accepted}"
            raise BadInput(
                f"the state of site {self.name} after {after} is not in {store.path}: put the folder back or start anew"
            )
        return initial if found is None else found


def _test(
    order: Request,
    algorithm: Algorithm,
    downlink: Downlink,
    memory: ClientStates,
    clients: Clients,
    answer: Response,
    store: SiteStore,
    k: int,
) -> tuple[Response, dict[str, Tree], Commit]:
    """Test the site's own model on its own test samples, and hand the model over to the site."""
    if answer.tests:
        steps = algorithm.steps() if isinstance(algorithm, Stage) else {}
        found = clients.own_accuracies(algorithm, downlink, memory, order.round)[k]
        on_the_way = {
            name: clients.own_accuracies(step, downlink, memory, order.round)[k] for name, step in steps.items()
        }
        answer = dataclasses.replace(answer, accuracy=found, steps=on_the_way)
    if not order.deliver:
        return answer, {}, _nothing
    (job,) = clients.work(algorithm, downlink, memory, order.round)
    with torch.no_grad():
        model = algorithm.personal_model(job.program.client(job.inputs(0)))

    def commit() -> None:
        store.deliver(order.algorithm, model)

    return answer, {}, commit


def _nothing() -> None:
    """Nothing is to be stored."""


def _check_mail(downlink: Downlink, algorithm: Algorithm, clients: Clients, k: int, round: int) -> None:
    """Refuse tensors from the server that don't fit what the run's recipe makes here."""
    server = clients.method.init_server(clients.initial[clients.assign[k]], clients.task_of(k))
    known = schema(make_downlink(algorithm, server, [k], clients.task_of).broadcast)
    found = schema(downlink.broadcast)
    for name in known.keys() & found.keys():
        if known[name] != found[name]:
            raise reply_check.Refused(
                f"the server sent {name!r} as {found[name]}, this site's model has {known[name]}: "
                "the two were set up with different models, classes or inputs"
            )
    for tree in (downlink.broadcast, *downlink.per_client.values()):
        reply_check.check(tree, None, k, round)
