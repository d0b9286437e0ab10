"""Simulations in which some clients are hostile, to see what an aggregator or a policy withstands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from statistics import NormalDist, median

import torch

from fedhead.core.training import random
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import tree_mean
from fedhead.data.federation.federation import Federation
from fedhead.engine.clients.server import evaluate_global_model
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.rounds.transport import Context, Received
from fedhead.executors.client.reply_set import ClientReply, ReplySet

Models = Sequence[Tree]
Attack = Callable[[ClientReply, Tree, int, Models], ClientReply]  # own reply, server state, seed, honest models


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
        sent = {k: reply.send for k, reply in received.replies.items() if k not in self._hostile}
        models = [send["model"] for send in sent.values() if "model" in send]
        for k in self._hostile & received.replies.keys():
            seed = random.key(self.task.seed, "attack", context.round, k)
            received = with_reply(received, k, self._attack(received.replies[k], context.server, seed, models))
        return received


def with_reply(received: Received, client: int, reply: ClientReply) -> Received:
    """Return what was received with another reply of a client."""
    return replace(received, replies=ReplySet.of({**received.replies, client: reply}))


# -- attacks ------------------------------------------------------------------------------------------
def honest(reply: ClientReply, server: Tree, seed: int, honest_models: Models) -> ClientReply:
    """Change nothing."""
    return reply


def scaled(factor: float) -> Attack:
    """Return the attack that sends the weights times a factor."""
    return lambda reply, *_: _with_model(reply, lambda model: model * factor)


def flipped(reply: ClientReply, server: Tree, seed: int, honest_models: Models) -> ClientReply:
    """Send the update with its sign flipped."""
    return _with_model(reply, lambda model: _held(server, model) * 2 - model)


def randomized(reply: ClientReply, server: Tree, seed: int, honest_models: Models) -> ClientReply:
    """Send standard normal weights."""
    generator = random.generator(seed)
    return _with_model(reply, lambda model: model.map(lambda t: torch.randn(t.shape, generator=generator).to(t)))


def boasting(reply: ClientReply, server: Tree, seed: int, honest_models: Models) -> ClientReply:
    """Send negated weights, and claim 1e12 samples."""
    return _with_model(reply, lambda model: -model)._replace(samples=1e12)


def inflated(reply: ClientReply, server: Tree, seed: int, honest_models: Models) -> ClientReply:
    """Send CCVR's sums of features and of their outer products times 1e6; the counts stay."""
    if "statistics" not in reply.send:
        return reply
    found = reply.send["statistics"]
    changed = {name: found[name] * 1e6 for name in found if name != "count"}
    return reply._replace(send=reply.send.replace(statistics=found.replace(changed)))


def inner_product(factor: float) -> Attack:
    """Return inner-product manipulation: the honest clients' mean update times −factor (Xie et al., 2019)."""

    def attack(reply: ClientReply, server: Tree, seed: int, honest_models: Models) -> ClientReply:
        def change(model: Tree) -> Tree:
            held = _held(server, model)
            return held - factor * (tree_mean(honest_models, [1.0] * len(honest_models)) - held)

        return _with_model(reply, change)

    return attack


def little(z: float) -> Attack:
    """Return "a little is enough": every coordinate z deviations below the honest mean (Baruch et al., 2019)."""

    def attack(reply: ClientReply, server: Tree, seed: int, honest_models: Models) -> ClientReply:
        def below(*rows: torch.Tensor) -> torch.Tensor:
            deviation, mean = torch.std_mean(torch.stack(rows), dim=0)
            return mean - z * deviation

        return _with_model(reply, lambda model: model.map(lambda _, *rows: below(*rows), *honest_models))

    return attack


def z_max(clients: int, hostile: int) -> float:
    """Return z of "a little is enough" (Baruch et al., 2019, Algorithm 3): φ(z) = (n − m − s) / (n − m).

    s = ⌊n/2 + 1⌋ − m honest clients are the supporters that hostile ones need for a majority.
    """
    supporters = clients // 2 + 1 - hostile
    return NormalDist().inv_cdf((clients - hostile - supporters) / (clients - hostile))


def flipped_to(length: float) -> Attack:
    """Return the attack that sends the flipped update, scaled to a multiple of the honest clients' median length."""

    def attack(reply: ClientReply, server: Tree, seed: int, honest_models: Models) -> ClientReply:
        def change(model: Tree) -> Tree:
            held = _held(server, model)
            lengths = [float((other - held).sq()) ** 0.5 for other in honest_models]
            own = model - held
            return held - own * (length * median(lengths) / float(own.sq()) ** 0.5)

        return _with_model(reply, change)

    return attack


def with_trigger(x: torch.Tensor) -> torch.Tensor:
    """Return images with a white square of 2 × 2 pixels in a corner."""
    x = x.clone()
    x[..., -2:, -2:] = 255
    return x


def backdoor(federation: Federation, clients: Collection[int], target: int = 0) -> Federation:
    """Return the federation with the trigger and the target's label in every second sample of some clients."""
    x, y = federation.train.x.clone(), federation.train.y.clone()
    for k in clients:
        rows = torch.as_tensor(federation.indices[k])[::2]
        x[rows], y[rows] = with_trigger(x[rows]), target
    return replace(federation, train=federation.train._replace(x=x, y=y))


def backdoor_success(simulation: Simulation, target: int = 0) -> float:
    """Return how many of the other classes' test samples the trigger turns into the target, in per cent."""
    test = simulation.test
    assert test is not None
    others = test.y != target
    x, y = with_trigger(test.x[others]), torch.full_like(test.y[others], target)
    row = evaluate_global_model(simulation.experiment.method, simulation.server, simulation.task, test.with_data(x, y))
    return float(row["accuracy"])


def flip_labels(federation: Federation, clients: Collection[int]) -> Federation:
    """Return the federation with class c in place of class C − 1 − c in the data of some clients."""
    y = federation.train.y.clone()
    for k in clients:
        rows = torch.as_tensor(federation.indices[k])
        y[rows] = federation.classes - 1 - y[rows]
    return replace(federation, train=federation.train._replace(y=y))


def _with_model(reply: ClientReply, change: Callable[[Tree], Tree]) -> ClientReply:
    if "model" not in reply.send:
        return reply
    return reply._replace(send=reply.send.replace(model=change(reply.send["model"])))


def _held(server: Tree, model: Tree) -> Tree:
    return model.replace({name: server["model"][name] for name in model})
