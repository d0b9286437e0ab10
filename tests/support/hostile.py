"""Simulations in which some clients are hostile, to see what an aggregator or a policy withstands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import torch

from fedhead.core.training import random
from fedhead.core.tree.tree import Tree
from fedhead.data.federation.federation import Federation
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.rounds.transport import Context, Received
from fedhead.executors.client.reply_set import ClientReply, ReplySet

Attack = Callable[[ClientReply, Tree, int], ClientReply]  # an honest reply, the server's state, a seed


class HostileSimulation(Simulation):
    """A simulation in which some clients send something else than they computed.

    Args:
        experiment: What is run.
        federation: The clients' data.
        compute: Device, executor and precision.
        hostile: Numbers of the hostile clients.
        attack: Changes the honest reply of each of them; stages are attacked alike.
        dtype: Of the models' weights.
    """

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        compute: Compute | None = None,
        *,
        hostile: Collection[int] = (),
        attack: Attack,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(experiment, federation, compute, dtype=dtype)
        self._hostile, self._attack = frozenset(hostile), attack

    def exchange(self, context: Context, cohort: list[int]) -> Received:
        """Let all clients work, then let the hostile ones change their replies."""
        received = super().exchange(context, cohort)
        for k in self._hostile & received.replies.keys():
            seed = random.key(self.task.seed, "attack", context.round, k)
            received = with_reply(received, k, self._attack(received.replies[k], context.server, seed))
        return received


def with_reply(received: Received, client: int, reply: ClientReply) -> Received:
    """Return what was received with another reply of a client."""
    return replace(received, replies=ReplySet.of({**received.replies, client: reply}))


# -- attacks ------------------------------------------------------------------------------------------
def honest(reply: ClientReply, server: Tree, seed: int) -> ClientReply:
    """Change nothing."""
    return reply


def scaled(factor: float) -> Attack:
    """Return the attack that sends the weights times a factor."""
    return lambda reply, server, seed: _with_model(reply, lambda model: model * factor)


def flipped(reply: ClientReply, server: Tree, seed: int) -> ClientReply:
    """Send the update with its sign flipped."""
    return _with_model(reply, lambda model: _held(server, model) * 2 - model)


def randomized(reply: ClientReply, server: Tree, seed: int) -> ClientReply:
    """Send standard normal weights."""
    generator = random.generator(seed)
    return _with_model(reply, lambda model: model.map(lambda t: torch.randn(t.shape, generator=generator).to(t)))


def boasting(reply: ClientReply, server: Tree, seed: int) -> ClientReply:
    """Send negated weights, and claim 1e12 samples."""
    return _with_model(reply, lambda model: -model)._replace(samples=1e12)


def inflated(reply: ClientReply, server: Tree, seed: int) -> ClientReply:
    """Send CCVR's sums of features and of their outer products times 1e6; the counts stay."""
    if "statistics" not in reply.send:
        return reply
    found = reply.send["statistics"]
    changed = {name: found[name] * 1e6 for name in found if name != "count"}
    return reply._replace(send=reply.send.replace(statistics=found.replace(changed)))


def flip_labels(federation: Federation, clients: Collection[int]) -> Federation:
    """Return the federation with class c in place of class C − 1 − c in the data of some clients."""
    y = federation.train.y.clone()
    for k in clients:
        rows = torch.as_tensor(federation.rows[k])
        y[rows] = federation.classes - 1 - y[rows]
    return replace(federation, train=federation.train._replace(y=y))


def _with_model(reply: ClientReply, change: Callable[[Tree], Tree]) -> ClientReply:
    if "model" not in reply.send:
        return reply
    return reply._replace(send=reply.send.replace(model=change(reply.send["model"])))


def _held(server: Tree, model: Tree) -> Tree:
    return model.replace({name: server["model"][name] for name in model})
