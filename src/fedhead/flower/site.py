"""A site: it carries out the server's orders on its own data, and decides what leaves it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedhead.engine import gate
from fedhead.engine.clients import Clients
from fedhead.engine.loop import Loop
from fedhead.engine.server import Post, post
from fedhead.engine.state import Memory
from fedhead.errors import BadInput, unknown
from fedhead.exchange import Exchange, Stage
from fedhead.flower.orders import TRAIN, Answer, Order, Terms, version
from fedhead.flower.shelf import Shelf
from fedhead.tree import Tree


@dataclass(frozen=True)
class Bench:
    """Where a site works: its client (among the federation's numbers) and the stages after the rounds."""

    clients: Clients
    stages: Sequence[Stage] = ()

    def exchange(self, name: str) -> Exchange:
        """The exchange of a name: the rounds', or a stage's."""
        found = {TRAIN: self.clients.method, **{stage.name: stage for stage in self.stages}}
        if name not in found:
            raise unknown("exchange", name, found)
        return found[name]


Commit = Callable[[], None]  # what is done once the answer is ready to go


@dataclass(frozen=True)
class Site:
    """One site: its name, how it makes its bench for a run, and where it keeps its state."""

    name: str
    bench: Callable[[Terms, int], Bench]  # from the run's terms and the site's number
    state: Path
    model: Mapping[str, Any] = field(default_factory=dict)  # recipe keys of an architecture of its own

    def answer(self, order: Order, trees: Mapping[str, Tree]) -> tuple[Answer, dict[str, Tree], Commit]:
        """Carry out an order: the answer, what is sent with it, and what to store once both are packed."""
        k = order.terms.number(self.name)
        bench = self.bench(order.terms, k)
        rows, local = bench.clients.federation.rows[k], bench.clients.federation.local
        if not len(rows):
            raise BadInput(
                f"site {self.name} holds no training samples: give it some, or take it out of the server's list"
            )
        answer = Answer(
            site=self.name,
            fedhead=version(),
            experiment=order.terms.experiment,
            round=order.round,
            exchange=order.exchange,
            samples=len(rows),
            tests=0 if local is None else len(local[k]),
            model=dict(self.model),
        )
        if order.kind == "hello":
            return answer, {}, _nothing
        return self._work(order, trees, bench, answer, k)

    def _work(
        self, order: Order, trees: Mapping[str, Tree], bench: Bench, answer: Answer, k: int
    ) -> tuple[Answer, dict[str, Tree], Commit]:
        clients = bench.clients
        exchange = bench.exchange(order.exchange)
        mail = Post(trees["down"].to(clients.device), {k: trees["own"].to(clients.device)})
        _check_mail(mail, exchange, clients, k, order.round)
        shelf = Shelf(self.state, order.terms.experiment, self.name)
        memory = Memory(
            clients.initial_state, {k: self._state(order, shelf, clients.initial_state(k)).to(clients.device)}
        )
        if order.kind == "test":
            return _test(order, exchange, mail, memory, clients, answer, shelf, k)
        (job,) = clients.work(exchange, mail, memory, order.round)
        (reply,) = Loop().run(job)
        gate.check(reply.send, None, k, order.round)  # what has diverged stays here, and is not kept either
        gate.check(reply.keep, None, k, order.round)

        def commit() -> None:
            if order.exchange == TRAIN:
                shelf.keep_state(order.round, reply.keep, order.accepted)
            else:
                shelf.keep_stage_state(order.exchange, reply.keep)

        return answer, {"send": reply.send}, commit

    def _state(self, order: Order, shelf: Shelf, initial: Tree) -> Tree:
        """The client's state that the server counts on."""
        if order.kind == "test" and order.staged:
            found = shelf.stage_state(order.exchange)
        elif order.accepted == 0:
            return initial
        else:
            found = shelf.state(order.accepted)
        if found is None and initial:
            after = f"stage {order.exchange}" if order.staged else f"round {order.accepted}"
            raise BadInput(
                f"the state of site {self.name} after {after} is not in {shelf.path}: put the folder back or start anew"
            )
        return initial if found is None else found


def _test(
    order: Order, exchange: Exchange, mail: Post, memory: Memory, clients: Clients, answer: Answer, shelf: Shelf, k: int
) -> tuple[Answer, dict[str, Tree], Commit]:
    """Test the site's own model on its own test samples, and hand the model over to the site."""
    if answer.tests:
        steps = exchange.steps() if isinstance(exchange, Stage) else {}
        found = clients.own_accuracies(exchange, mail, memory, order.round)[k]
        on_the_way = {name: clients.own_accuracies(step, mail, memory, order.round)[k] for name, step in steps.items()}
        answer = dataclasses.replace(answer, accuracy=found, steps=on_the_way)
    if not order.deliver:
        return answer, {}, _nothing
    (job,) = clients.work(exchange, mail, memory, order.round)
    with torch.no_grad():
        model = exchange.personal_model(job.program.me(job.sight(0)))

    def commit() -> None:
        shelf.deliver(order.exchange, model)

    return answer, {}, commit


def _nothing() -> None:
    """Nothing is to be stored."""


def _check_mail(mail: Post, exchange: Exchange, clients: Clients, k: int, round: int) -> None:
    """Refuse tensors from the server that don't fit what the run's recipe makes here."""
    server = clients.method.init_server(clients.initial[clients.assign[k]], clients.task_of(k))
    known = gate.schema(post(exchange, server, [k], clients.task_of).down)
    found = gate.schema(mail.down)
    for name in known.keys() & found.keys():
        if known[name] != found[name]:
            raise gate.Refused(
                f"the server sent {name!r} as {found[name]}, this site's model has {known[name]}: "
                "the two were set up with different models, classes or inputs"
            )
    for tree in (mail.down, *mail.own.values()):
        gate.check(tree, None, k, round)
