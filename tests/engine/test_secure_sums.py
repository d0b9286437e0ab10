"""Runs with secure sums: the same models as without, for every method and stage that adds up; others are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hostile import with_reply
from simulations import make_simulation, run
from small import federation, network
from tiers import quick

import fedhead as fh
from fedhead.aggregators import AGGREGATORS
from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.algorithm.upload import Clip, Float16Upload, SecureSum
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.policies.outliers import OutlierPolicy
from fedhead.engine.policies.reply_check import Impossible
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.rounds.transport import Context, Received, SecureStep
from fedhead.methods import METHODS
from fedhead.privacy.secure_sum.session import Message, SecureSumError, Session
from fedhead.samplers import SAMPLERS
from fedhead.stages import STAGES

LOCAL = LocalTraining(epochs=1, batch_size=4)
SECURE = SecureSum(threshold=0.5)  # one of the five clients has no samples
REFUSED = ["feddyn", "fednh", "ktpfl", "scaffold"]


class Recorded(Simulation):
    """A simulation that records what the server receives, and in which clients may drop out or lie."""

    dropped: Mapping[str, list[int]] = {}
    lie: Callable[[int, Tree], Tree] | None = None

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.masked: list[torch.Tensor] = []

    def exchange(self, context: Context, cohort: list[int]) -> Received:
        received = super().exchange(context, cohort)
        if self.lie is not None:
            for k, reply in list(received.replies.items()):
                received = with_reply(received, k, reply._replace(send=self.lie(k, reply.send)))
        return received

    def secure_step(
        self, context: Context, session: Session, step: SecureStep, messages: Mapping[int, Message]
    ) -> tuple[dict[int, Message], dict[int, FedheadError]]:
        gone = self.dropped.get(step, [])
        answers, _ = super().secure_step(context, session, step, {k: m for k, m in messages.items() if k not in gone})
        return answers, {k: Impossible("it is gone") for k in gone if k in messages}

    def masked_exchange(self, context: Context, session: Session, messages: Mapping[int, Message]) -> Received:
        kept = {k: message for k, message in messages.items() if k not in self.dropped.get("mask", [])}
        received = super().masked_exchange(context, session, kept)
        self.masked += [reply.send["masked"] for reply in received.replies.values()]
        return received


def simulation(method: str = "fedavg", *, secure: bool = True, **settings: Any) -> Recorded:
    settings = {"rounds": 2, "local": LOCAL, "kind": Recorded, **settings}
    if secure:
        settings.setdefault("uploads", [SECURE])
    found = make_simulation(federation(), [network("group", METHODS[method].head)], METHODS[method](), **settings)
    assert isinstance(found, Recorded)
    return found


def same(one: Tree, two: Tree, tolerance: float = 1e-6) -> None:
    left, right = one.leaves(), two.leaves()
    assert left.keys() == right.keys()
    for name, t in left.items():
        torch.testing.assert_close(t, right[name], atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("method", quick(sorted(set(METHODS) - {*REFUSED, "local"}), "fedavg", "fedrep", "fedproto"))
def test_rounds_with_secure_sums_give_the_same_model(method: str) -> None:
    secure, plain = simulation(method), simulation(method, secure=False)
    row, expected = run(secure).rows[-1], run(plain).rows[-1]
    same(secure.server, plain.server)
    assert row["secure_sum"]
    assert row["participants"] == expected["participants"]
    assert row["accuracy"] == expected["accuracy"]


@pytest.mark.parametrize(
    "stage", quick(["ridge", "ncm", "lda", "qda", "ccvr", "personal_ridge"], "ccvr", "personal_ridge")
)
def test_stages_with_secure_sums_give_the_same_head(stage: str) -> None:
    results = [run(simulation(secure=secure, rounds=0), stages=[STAGES[stage]()]).stages[stage] for secure in (1, 0)]
    same(results[0].server, results[1].server, 1e-5)
    assert results[0].metrics["accuracy"] == results[1].metrics["accuracy"]
    assert results[0].metrics["personal"] == pytest.approx(results[1].metrics["personal"])


def test_fednh_over_samples_is_a_sum() -> None:
    settings: dict[str, Any] = {"rounds": 1, "local": LOCAL, "kind": Recorded}
    made = [
        make_simulation(
            federation(), network("group", "prototype"), fh.FedNH(average_over="samples"), uploads=uploads, **settings
        )
        for uploads in ([SECURE], [])
    ]
    for each in made:
        run(each)
    same(made[0].server, made[1].server)


def test_the_recipe_key_switches_it_on() -> None:
    result = fh.run(federation(), network("group"), rounds=1, uploads=["secure_sum(range=1e5)"])
    assert result.rows[0]["secure_sum"]


@pytest.mark.parametrize("step", ["advertise", "share", "mask", "unmask"])
def test_a_client_that_drops_out_is_not_in_the_sum(step: str) -> None:
    secure = simulation(rounds=0, stages=[fh.Ridge()])
    secure.dropped = {step: [1]}
    row = run(secure).stages["ridge"].metrics
    assert row["participants"] == (4 if step == "unmask" else 3)
    assert step == "mask" or list(row["failed"]) == ["1"]


def test_too_few_clients_end_the_run() -> None:
    secure = simulation(rounds=0, stages=[fh.Ridge()])
    secure.dropped = {"share": [0, 1]}
    with pytest.raises(SecureSumError, match="2 of 4 clients have shared their secrets, at least 3 are needed"):
        run(secure)


def test_an_impossible_reply_stays_at_its_client() -> None:
    secure = simulation(rounds=0, stages=[fh.Ridge()])
    secure.lie = lambda k, send: send.replace(statistics=send["statistics"] * (-1 if k == 3 else 1))
    row = run(secure).stages["ridge"].metrics
    assert "not negative" in row["failed"]["3"]
    assert row["participants"] == len(secure.masked) == 3


def test_an_encoding_that_would_overflow_is_refused_at_the_client() -> None:
    secure = simulation(rounds=0, stages=[fh.Ridge()], uploads=[SecureSum(range=2.0, threshold=0.5)])
    with pytest.raises(BadInput, match=r"'statistics/count' holds .*, more than the range 2 of one client"):
        run(secure)
    assert not secure.masked


def test_the_server_gets_masked_vectors_with_few_more_bytes() -> None:
    secure, plain = simulation(rounds=0, stages=[fh.Ridge()]), simulation(secure=False, rounds=0, stages=[fh.Ridge()])
    rows = [run(each).stages["ridge"].metrics for each in (secure, plain)]
    assert len({tuple(vector.tolist()) for vector in secure.masked}) == len(secure.masked) == 4
    overhead = rows[0]["bytes_up"] - rows[1]["bytes_up"]
    # per client: an advert (96 bytes and a signature of 64), 3 encrypted pairs of shares, 4 shares; no architecture
    assert overhead == 4 * (160 + 3 * 82 + 4 * 33 - 8)


# -- refused before the run ---------------------------------------------------------------------------
def refused(method: str = "fedavg", models: int = 1, **settings: Any) -> str:
    settings = {"rounds": 1, "local": LOCAL, "uploads": [SECURE], **settings}
    networks = [network("group", METHODS[method].head) for _ in range(models)]
    with pytest.raises(BadInput) as error:
        make_simulation(federation(), networks, METHODS[method](), **settings)
    return str(error.value)


@pytest.mark.parametrize("method", REFUSED)
def test_a_method_that_is_no_sum_is_refused_by_name(method: str) -> None:
    assert f"{method} sends replies that are neither sums" in refused(method)


def test_a_method_that_sends_nothing_needs_no_secure_sum() -> None:
    assert "secure_sum has no effect: local sends the server nothing" in refused("local")
    assert [METHODS[name]().aggregates for name in ("local", "fedproto")] == [False, True]


@pytest.mark.parametrize("stage", [fh.FedCOF(), fh.CCVR(covariance="low-rank")], ids=["fedcof", "low-rank"])
def test_a_stage_that_is_no_sum_is_refused_by_name(stage: Stage) -> None:
    assert f"{stage.name} sends replies that are neither sums" in refused(rounds=0, stages=[stage])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"uploads": [SecureSum(), Clip()]}, "must be the last upload"),
        ({"uploads": [Float16Upload(), SecureSum()]}, "need no decoding"),
        ({"outliers": OutlierPolicy("drop")}, "outliers needs single replies"),
        ({"aggregator": AGGREGATORS["median"]()}, "aggregator needs single replies"),
        ({"sampler": SAMPLERS["weighted"](), "participation": 0.8}, "sampler weighted needs"),
        ({"sampler": SAMPLERS["poisson"](), "participation": 0.8}, "sampler=poisson may draw too few"),
        ({"participation": 0.4}, "2 clients are too few: a sum covers at least 3"),
        ({"models": 2}, "several architectures"),
        ({"uploads": [SecureSum(range=1e18)]}, "range 1e+18 is too large"),
    ],
)
def test_settings_that_need_single_replies_are_refused(settings: dict[str, Any], reason: str) -> None:
    assert reason in refused(**settings)


def test_clip_before_it_is_allowed() -> None:
    found: FinishedRun = run(simulation(uploads=[Clip(0.01), SECURE]))
    assert found.rows[0]["secure_sum"]


@dataclass(frozen=True)
class OpenCounts(Stage):
    """Stage that sends counts and doesn't aggregate them."""

    name = "open_counts"

    def finish(self, w: Weights, client: Client) -> Reply:
        return Reply(Tree(counts=client.counts.double()), client.state)


@dataclass(frozen=True)
class Counts(OpenCounts):
    """Stage that sends counts as sums."""

    name = "counts"
    sums = ("counts",)
    adds_up = True

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        assert replies.total is not None
        return server.replace(found=replies.total["counts"])


def test_a_user_s_stage_sends_sums_or_nothing() -> None:
    counts = simulation(rounds=0, stages=[Counts()])
    found = run(counts).stages["counts"].server["found"]
    assert float(found.sum()) == sum(len(rows) for rows in counts.clients.federation.indices)
    with pytest.raises(BadInput, match="open_counts sends replies openly"):
        run(simulation(rounds=0, stages=[OpenCounts()]))
