"""Replies that stand out from the others of their round: rejected, clipped or dropped, and named in the record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import with_reply
from simulations import make_simulation, make_world, run
from small import federation, network
from small_sites import changed_response

from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import Float16Upload
from fedhead.core.components.component_syntax import read_policy
from fedhead.core.system.errors import BadInput, Diverged
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.policies import outliers
from fedhead.engine.policies.outliers import OutlierPolicy
from fedhead.engine.policies.reply_check import Refused
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.rounds.transport import Context, Received
from fedhead.executors.client.reply_set import ClientReply
from fedhead.methods import METHODS

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05))
Change = Callable[[ClientReply, Tree], ClientReply]


class Lying(Simulation):
    """A simulation in which client 3 sends something else than it computed."""

    lie: Change

    def exchange(self, context: Context, cohort: list[int]) -> Received:
        received = super().exchange(context, cohort)
        return with_reply(received, 3, self.lie(received.replies[3], context.server))


def simulated(lie: Change, policy: str | None, method: str = "fedavg", **settings: Any) -> FinishedRun:
    made = METHODS[method]()
    chosen = None if policy is None else read_policy(OutlierPolicy, policy, "outliers")
    settings = {"rounds": 1, "local": LOCAL, "outliers": chosen, **settings}
    simulation = make_simulation(federation(), [network("group", made.head)], made, kind=Lying, **settings)
    assert isinstance(simulation, Lying)
    simulation.lie = lie
    return run(simulation)


def away(reply: ClientReply, server: Tree, factor: float = 1e6) -> ClientReply:
    old = server["model"]
    return reply._replace(send=reply.send.replace(model=old + (reply.send["model"] - old) * factor))


def honest(reply: ClientReply, server: Tree) -> ClientReply:
    return reply


def distance(a: FinishedRun, b: FinishedRun) -> float:
    return float((a.server["model"] - b.server["model"]).sq()) ** 0.5


def test_it_is_dropped_and_named() -> None:
    found = simulated(away, "drop(norm=5)")
    (failed,) = [row["failed"] for row in found.rows]
    assert list(failed) == ["3"]
    assert "the norm of its model" in failed["3"]
    assert "times the round's median" in failed["3"]
    assert found.rows[0]["participants"] == 3  # of the four that hold data
    assert 3 not in found.clients
    assert distance(found, simulated(honest, None)) < 1
    assert distance(simulated(away, None), simulated(honest, None)) > 1e4


def broken(reply: ClientReply, server: Tree) -> ClientReply:
    return reply._replace(send=reply.send.map(lambda t: t * float("nan") if t.is_floating_point() else t))


def kept_broken(reply: ClientReply, server: Tree) -> ClientReply:
    return reply._replace(kept=reply.kept.map(lambda t: t * float("nan") if t.is_floating_point() else t))


@pytest.mark.parametrize(("lie", "method"), [(broken, "fedavg"), (kept_broken, "scaffold")])
def test_a_client_that_diverged_is_dropped_and_named(lie: Change, method: str) -> None:
    row = simulated(lie, "drop", method).rows[-1]
    assert list(row["failed"]) == ["3"]
    assert "is not finite any more" in row["failed"]["3"]
    for policy in (None, "clip", "reject"):
        with pytest.raises(Diverged, match="client 3, round 1"):
            simulated(lie, policy, method)


def test_rejecting_ends_a_simulation() -> None:
    with pytest.raises(Refused, match="client 3: the norm of its model"):
        simulated(away, "reject(norm=5)")


def test_clipping_leaves_an_update_of_the_limit() -> None:
    # lengths a, b, c of the others and L of client 3, the largest: the median is that of all four
    found = simulated(away, "clip(norm=2)")
    assert list(found.rows[0]["clipped"]) == ["3"]
    assert found.rows[0]["participants"] == 4
    assert "failed" not in found.rows[0]
    assert distance(found, simulated(honest, None)) < 1


def test_by_hand() -> None:
    # lengths 5, 10, 10, 50 from the server's (1, 1): the median is 10, the limit 20; 50 becomes 20 at the same angle
    server = Tree(model=Tree(w=torch.tensor([1.0, 1.0])))
    moved = {0: (3.0, 4.0), 1: (6.0, 8.0), 2: (-6.0, -8.0), 3: (30.0, 40.0)}
    sent = {k: Tree(model=Tree(w=torch.tensor([1 + a, 1 + b]))) for k, (a, b) in moved.items()}
    samples = {0: 10.0, 1: 20.0, 2: 30.0, 3: 1e12}  # the median is 25
    policy = OutlierPolicy("clip", norm=2, samples=4)
    found = outliers.find(policy, METHODS["fedavg"](), server, sent, samples)
    assert list(found) == [3]
    torch.testing.assert_close(found[3].sent["model"]["w"], torch.tensor([13.0, 17.0]))
    assert found[3].samples == 100
    assert found[3].why == (
        "the norm of its model 50 is 5 times the round's median of 10; "
        "its number of samples 1e+12 is 4e+10 times the round's median of 25"
    )


def test_running_statistics_have_no_length() -> None:
    """Clients with larger inputs have larger running means; a clipped model's are scaled like its parameters."""

    def model(w: float, mean: float) -> Tree:
        return Tree(model=Weights({"w": torch.tensor([w]), "mean": torch.tensor([mean])}, buffers=["mean"]))

    sent = {0: model(1, 5), 1: model(1, 10), 2: model(2, 1e6), 3: model(40, 8)}
    policy = OutlierPolicy("clip", norm=2)
    found = outliers.find(policy, METHODS["fedavg"](), model(0, 0), sent, dict.fromkeys(sent, 1.0))
    assert list(found) == [3]
    assert found[3].sent["model"]["w"].tolist() == [3.0]  # twice the median of 1.5
    torch.testing.assert_close(found[3].sent["model"]["mean"], torch.tensor([0.6]))


def test_samples_alone() -> None:
    def boast(reply: ClientReply, server: Tree) -> ClientReply:
        return reply._replace(samples=1e12)

    found = simulated(boast, "drop(norm=null, samples=20)")
    assert "its number of samples 1e+12" in found.rows[0]["failed"]["3"]
    assert not any("failed" in row for row in simulated(honest, "drop(norm=5, samples=20)").rows)


def test_controls_are_measured_too() -> None:
    def spoil(reply: ClientReply, server: Tree) -> ClientReply:
        return reply._replace(send=reply.send.replace(control=reply.send["control"] * 1e6))

    found = simulated(spoil, "drop(norm=5)", "scaffold")
    assert "the norm of its control" in found.rows[0]["failed"]["3"]
    clipped = simulated(spoil, "clip(norm=5)", "scaffold")
    assert float(clipped.server["control"].sq()) ** 0.5 < 1e2
    assert float(simulated(spoil, None, "scaffold").server["control"].sq()) ** 0.5 > 1e3


def test_uploads_are_undone_first() -> None:
    def grow(reply: ClientReply, server: Tree) -> ClientReply:
        return reply._replace(send=reply.send.map(lambda t: t * 100))

    found = simulated(grow, "drop(norm=5)", uploads=[Float16Upload()])
    assert list(found.rows[0]["failed"]) == ["3"]


def test_a_site_is_dropped_as_a_client_of_a_simulation_is(tmp_path: Path) -> None:
    settings = {"rounds": 1, "local": LOCAL, "outliers": OutlierPolicy("drop")}
    world = make_world(federation(), {"own": network("group")}, METHODS["fedavg"](), settings, tmp_path)
    grid = world.grid()

    def change(header: dict[str, Any], trees: dict[str, Any]) -> None:
        if "send" in trees:
            model = transport.server["model"]
            trees["send"] = trees["send"].replace(model=model + (trees["send"]["model"] - model) * 1e6)

    grid.faults[103] = lambda message, make: changed_response(make(), change)
    transport = world.transport(grid, round_seconds=60.0)
    found = run(transport)
    assert "the norm of its model" in found.rows[0]["failed"]["site-3"]
    assert distance(found, simulated(away, "drop")) < 1e-6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dorp(5)", "unknown policy of outliers 'dorp'"),
        ("drop(norm=0.5)", "must be at least 1"),
        ("drop(length=3)", "unknown parameter of outliers drop 'length'"),
        ("clip(norm=null)", "clip has no limit"),
    ],
)
def test_other_policies_are_refused(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words.replace("(", r"\(")):
        simulated(honest, text)


def test_a_method_without_updates_is_refused() -> None:
    with pytest.raises(BadInput, match="the clients of fedproto send no update whose length could be compared"):
        simulated(honest, "drop", "fedproto")
