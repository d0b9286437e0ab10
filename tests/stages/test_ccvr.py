"""The stages ccvr and recalibrate: the same on every executor, after any method, and refused where they can't work."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from simulations import make_simulation
from small import federation, network
from tiers import quick

from fedhead import CCVR, METHODS, BadInput, Recalibrate, build, with_head
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.task import LocalTraining
from fedhead.calibration import retrain as retraining
from fedhead.calibration import statistics as class_statistics
from fedhead.calibration.head import linear
from fedhead.calibration.retrain import Features, autograd_gradient, linear_gradient, retrain
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.virtual_features import tukey, virtual_counts, virtual_features
from fedhead.core.training import batching
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.rounds import run_stage, train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.models.split_model import SplitModel, classify, weights
from fedhead.stages.recalibrate import features

LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9))
SMALL: dict[str, Any] = {"samples": 20, "epochs": 3, "lr": 0.05}


def trained(method: Method | None = None, rounds: int = 2, models: list[SplitModel] | None = None) -> Simulation:
    method = method or METHODS["fedavg"]()
    made = models or [network("group") if method.head is None else with_head(network("group"), method.head)]
    simulation = make_simulation(federation(), made, method, rounds=rounds, local=LOCAL, dtype=torch.float64)
    for number in range(1, rounds + 1):
        train_round(simulation.using(Loop()), number)
    return simulation


@pytest.mark.parametrize("covariance", ["full", "diagonal", "low-rank"])
def test_the_loop_and_the_stack_calibrate_alike(covariance: str) -> None:
    simulation = trained()
    stage = CCVR(covariance=covariance, rank=3, **SMALL)  # type: ignore[arg-type]  # a literal from the parameters
    stage = stage.on_method(simulation.experiment.method)
    loop, stack = (run_stage(simulation.using(worker), stage).server for worker in (Loop(), Stack()))
    found, other = (stage.global_model(server, simulation.task) for server in (loop, stack))
    assert found is not None
    assert other is not None
    for name, t in found.items():
        torch.testing.assert_close(t, other[name], atol=1e-10, rtol=1e-10)
    before = simulation.server["model"]
    moved = {name for name, t in found.items() if not torch.equal(t, before[name])}
    assert moved == {"classifier.weight", "classifier.bias"}


def test_clients_statistics_add_up_to_those_of_the_pooled_features() -> None:
    simulation = trained()
    stage = CCVR().on_method(simulation.experiment.method)
    sent = []
    for job in simulation.jobs(stage, simulation.server, simulation.states, simulation.clients.holders, 3):
        sent += [(k, reply.send) for k, reply in zip(job.clients, Loop().train(job), strict=True)]
    clients, trees = zip(*sent, strict=True)
    merged = stage.merge(Replies(clients, [1.0] * len(clients), trees), simulation.task)
    assert simulation.task.pool is not None
    z, y = features(simulation.task.model, simulation.server["model"], simulation.task.pool)
    for c in range(3):
        own = z[y == c].numpy()
        np.testing.assert_allclose(merged.mean()[c], own.mean(0), atol=1e-10)
        np.testing.assert_allclose(merged.covariance()[c], np.cov(own.T), atol=1e-10)


def test_the_bytes_sent_are_counted() -> None:
    simulation, d, classes = trained(), 8, 3
    per_client = {"full": 1 + d + d * (d + 1) // 2, "diagonal": 1 + d + d, "low-rank": 1 + d + d + 2 * d}
    for covariance, numbers in per_client.items():
        stage = CCVR(covariance=covariance, rank=2, **SMALL)  # type: ignore[arg-type]  # a literal from the table
        outcome = run_stage(simulation.using(Loop()), stage)
        assert outcome.metrics["bytes_up"] == len(simulation.clients.holders) * 8 * (
            classes * numbers + 1
        )  # 1: architecture


@pytest.mark.parametrize("name", quick(sorted(METHODS), "fedavg", "fedproto"))
def test_ccvr_follows_any_method_or_says_why_not(name: str) -> None:
    method = METHODS[name]()
    simulation = trained(method)
    stage = CCVR(**SMALL)
    if method.head is not None:
        with pytest.raises(BadInput, match=r"fixed|not linear"):
            run_stage(simulation.using(Loop()), stage)
        stage = dataclasses.replace(stage, any_head=True)
    if not set(method.shared) & {"extractor", "classifier"}:
        with pytest.raises(BadInput, match=f"ccvr can't follow {name}"):
            run_stage(simulation.using(Loop()), stage)
        return
    outcome = run_stage(simulation.using(Loop()), stage)
    assert outcome.personal is not None
    assert (outcome.accuracy is None) == (not {"extractor", "projection"} <= set(method.shared))


class HeadOnly(Method):
    """Shares the classifier alone."""

    name = "headonly"

    @property
    def shared(self) -> tuple[str, ...]:
        return ("classifier",)


def test_each_architecture_has_statistics_and_a_head_of_its_own() -> None:
    models = [build("mlp", (1, 6, 6), 3, hidden=[h, 8]) for h in (5, 7)]
    simulation = trained(HeadOnly(), models=models)
    outcome = run_stage(simulation.using(Stack()), CCVR(**SMALL))
    heads = list(outcome.server["calibrated"].values())
    assert len(heads) == 2
    assert (heads[0] - heads[1]).sq() > 1e-12
    assert outcome.accuracy is None
    assert outcome.personal is not None
    alone = [k for k in simulation.clients.holders if simulation.clients.assign[k] == 0]
    stage = CCVR(**SMALL).on_method(simulation.experiment.method)
    job = simulation.jobs(stage, simulation.server, simulation.states, alone, 3)[0]
    sent = [reply.send for reply in Loop().train(job)]
    merged = stage.merge(Replies(alone, [1.0] * len(alone), sent), simulation.task)
    expected = stage.calibrate(models[0].double(), simulation.server["model"], merged, simulation.task.seed)
    torch.testing.assert_close(heads[0]["classifier.weight"], expected["classifier.weight"])


# -- virtual features ---------------------------------------------------------------------------------
def test_virtual_features_have_the_moments_of_their_classes() -> None:
    draw = torch.Generator().manual_seed(0)
    mix = torch.randn(2, 3, 3, generator=draw, dtype=torch.float64)
    z = torch.randn(400, 3, generator=draw, dtype=torch.float64)
    y = torch.arange(400) % 2
    z = torch.stack([mix[c] @ v + 2 * c for c, v in zip(y.tolist(), z, strict=True)])
    known = class_statistics.from_features(z, y, 3)
    drawn, labels = virtual_features(known, [20_000, 20_000, 0], key=1)
    again = class_statistics.from_features(drawn, labels, 3)
    assert again.count.tolist() == [20_000, 20_000, 0]
    torch.testing.assert_close(again.mean(), known.mean(), atol=0.1, rtol=0.05)
    torch.testing.assert_close(again.covariance(), known.covariance(), atol=0.15, rtol=0.05)
    fewer, _ = virtual_features(known, [5, 20_000, 0], key=1)
    assert torch.equal(fewer[5:], drawn[20_000:])  # a class's draws do not depend on the others' number


def test_virtual_features_are_the_same_in_pieces_and_in_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    z, y = torch.randn(60, 3, generator=draw, dtype=torch.float64), torch.arange(60) % 5
    known = class_statistics.from_features(z, y, 5)
    whole, labels = virtual_features(known, [4, 0, 3, 2, 1], key=1)
    monkeypatch.setattr("fedhead.calibration.virtual_features.classes_at_once", lambda features: 2)
    single, again = virtual_features(known, [4, 0, 3, 2, 1], 1, torch.float32, lambda z: tukey(z, 0.5))
    assert torch.equal(single, tukey(whole, 0.5).float())
    assert labels.tolist() == again.tolist() == [0] * 4 + [2] * 3 + [3] * 2 + [4]


def test_singular_covariances_are_sampled_inside_their_subspace() -> None:
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(4, 50, generator=draw, dtype=torch.float64)
    known = class_statistics.from_features(z, torch.zeros(4, dtype=torch.long), 1)
    drawn, _ = virtual_features(known, [30], key=0)
    basis = torch.linalg.qr((z - z.mean(0)).T[:, :3]).Q
    off = drawn - z.mean(0)
    assert (off - off @ basis @ basis.T).abs().max() < 1e-6
    assert off.abs().max() > 0.1


def test_numbers_of_virtual_features() -> None:
    count = torch.tensor([60.0, 0.0, 20.0])
    assert virtual_counts(count, 10, proportional=False) == [10, 0, 10]
    assert virtual_counts(count, 10, proportional=True) == [15, 0, 5]
    with pytest.raises(BadInput, match="no samples of any class"):
        virtual_counts(torch.zeros(3), 10, proportional=False)


# -- the head -----------------------------------------------------------------------------------------
def test_retraining_equals_torch_sgd() -> None:
    model = build("mlp", (4,), 3, hidden=[5]).double()
    draw = torch.Generator().manual_seed(0)
    z, y = torch.randn(10, 5, generator=draw, dtype=torch.float64), torch.arange(10) % 3
    head = weights(model).part("classifier")
    found = retrain(model, head, z, y, SGD(0.1, 0.9, 1e-2), epochs=4, batch_size=10, key=0)
    net = torch.nn.Linear(5, 3, dtype=torch.float64)
    net.load_state_dict({n.removeprefix("classifier."): t for n, t in head.items()})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    for _ in range(4):  # whole batches: their order does not matter
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(z), y).backward()
        optimizer.step()
    torch.testing.assert_close(found["classifier.weight"], net.weight.detach(), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(found["classifier.bias"], net.bias.detach(), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_of_a_linear_head_is_that_of_autograd(bias: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    model = SplitModel(torch.nn.Identity(), torch.nn.Linear(5, 3, bias=bias)).double()
    weight = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)  # one is padding
    y = torch.tensor([0, 2, 1, 2])
    target = torch.nn.functional.one_hot(y, 3).double()
    z = torch.randn(4, 5, generator=draw, dtype=torch.float64)
    batch = Features(z, y, weight, target, weight / weight.sum())
    params = weights(model).part("classifier").params
    found, expected = linear_gradient(params, batch), autograd_gradient(model)(params, batch)
    assert list(found) == list(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-14, rtol=1e-14)


def test_too_high_a_learning_rate_is_refused() -> None:
    model = build("mlp", (4,), 3, hidden=[5])
    z, y = torch.randn(30, 5, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    with pytest.raises(BadInput, match="smaller one"):
        retrain(model, weights(model).part("classifier"), 1e20 * z, y, SGD(1e20), epochs=5, batch_size=10, key=0)


@pytest.mark.parametrize(
    ("head", "is_linear"), [("linear", True), ("normalized", True), ("etf", False), ("prototype", False)]
)
def test_heads_that_are_linear_in_the_features(head: str, is_linear: bool) -> None:
    assert linear(build("mlp", (4,), 3, head=head)) is is_linear


def test_calibration_of_a_head_that_is_not_linear_is_refused_before_any_round() -> None:
    class Squared(torch.nn.Linear):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return super().forward(z) ** 2

    model = SplitModel(torch.nn.Flatten(), Squared(36, 3))
    for stage in (CCVR(), Recalibrate()):
        with pytest.raises(BadInput, match="Squared is not linear in the features"):
            stage.check([model], federation())
    with pytest.raises(BadInput, match=r"ETFHead keeps 'classifier\.weight' fixed"):
        CCVR().check([build("mlp", (1, 6, 6), 3, head="etf")], federation())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "on_statistics", "on_virtual", "in_tests"),
    [
        ("real", True, False, True),
        ("both", False, True, True),
        ("virtual", False, True, False),
        ("none", False, False, False),
    ],
)
def test_where_tukeys_transformation_is_applied(
    variant: str, on_statistics: bool, on_virtual: bool, in_tests: bool
) -> None:
    simulation = trained()
    stage = CCVR(tukey=variant, **SMALL)  # type: ignore[arg-type]  # a literal from the parameters
    outcome = run_stage(simulation.using(Loop()), stage)
    assert outcome.weights is not None
    assert simulation.task.pool is not None
    assert simulation.test is not None
    z, y = features(simulation.task.model, simulation.server["model"], simulation.task.pool)
    known = class_statistics.from_features(tukey(z, 0.5) if on_statistics else z, y, 3)
    bare = dataclasses.replace(stage, tukey="both" if on_virtual else "none")
    head = bare.calibrate(simulation.task.model, simulation.server["model"].part("classifier"), known, 0)
    torch.testing.assert_close(outcome.weights["classifier.weight"], head["classifier.weight"])
    zt, yt = features(simulation.task.model, outcome.weights, simulation.test)
    logits = classify(simulation.task.model, outcome.weights, tukey(zt, 0.5) if in_tests else zt)
    assert outcome.accuracy == pytest.approx(100 * float((logits.argmax(1) == yt).double().mean()))


# -- real data ----------------------------------------------------------------------------------------
def test_recalibration_uses_all_training_rows_but_no_test_rows() -> None:
    simulation = trained()
    own = federation()
    # the last ten training rows become local test rows: the oracle must not see them
    rows = [r[r < 21] for r in own.indices]
    cut = dataclasses.replace(
        own, indices=rows, client_test=[np.arange(21, 31)] + [np.array([], np.int64)] * 4, client_test_from="train"
    )
    held = make_simulation(cut, [network("group")], simulation.experiment.method, rounds=1, local=LOCAL)
    assert held.task.pool is not None
    assert len(held.task.pool) == 21
    stage = Recalibrate(per_class=2, epochs=1)
    chosen = held.task.pool.y[stage.rows(held.task.pool, 0)].bincount(minlength=3)
    assert torch.equal(chosen, held.task.pool.y.bincount(minlength=3).clamp(max=2))
    assert torch.equal(stage.rows(held.task.pool, 0), stage.rows(held.task.pool, 0))
    assert not torch.equal(stage.rows(held.task.pool, 0), stage.rows(held.task.pool, 1))


def test_recalibration_is_refused_where_there_is_no_global_model() -> None:
    with pytest.raises(BadInput, match="no global model"):
        Recalibrate().on_method(HeadOnly())


# -- bad statistics from a client -----------------------------------------------------------------------
def test_a_client_that_sends_nonsense_is_named_and_nothing_is_changed() -> None:
    simulation = trained()
    stage = CCVR(**SMALL).on_method(simulation.experiment.method)
    jobs = simulation.jobs(stage, simulation.server, simulation.states, simulation.clients.holders, 3)
    replies = Loop().train(jobs[0])
    before = {n: t.clone() for n, t in simulation.server.leaves().items()}

    narrow = class_statistics.from_features(torch.eye(4, dtype=torch.float64), torch.arange(4) % 3, 3).tree()

    def aggregate(change: Any) -> None:
        sent = [Tree(r.send) for r in replies]
        sent[1] = sent[1].replace(statistics=change(sent[1]["statistics"]))
        gathered = Replies(jobs[0].clients, [1.0] * len(sent), sent)
        stage.aggregate(simulation.server, gathered, simulation.task)

    def spoil(s: Tree) -> Tree:
        outer = s["outer"].clone()
        outer[s["count"] > 1, 1] = 1e6
        return s.replace(outer=outer)

    for change, words in (
        (lambda s: s.replace(count=-s["count"]), "statistics of client 1: .*not negative"),
        (lambda s: s.replace(sum=s["sum"] * float("nan")), "statistics of client 1: 'sum' is not finite"),
        (spoil, "statistics of client 1: .*not positive semi-definite"),
        (lambda _: narrow, "different model: features: 4 here, 8 elsewhere"),
    ):
        with pytest.raises(BadInput, match=words):
            aggregate(change)
    assert all(torch.equal(t, before[n]) for n, t in simulation.server.leaves().items())


def test_settings_out_of_range_are_refused() -> None:
    for wrong, words in (
        ({"samples": 0}, "samples"),
        ({"epochs": -1}, "epochs"),
        ({"power": 0.0}, "power"),
    ):
        with pytest.raises(BadInput, match=f"^CCVR: {words}: .* is out of range"):
            CCVR(**wrong)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(BadInput, match="rank: 9 is more than the features' 8"):
        CCVR(covariance="low-rank", rank=9).check([network("group")], federation())
    with pytest.raises(BadInput, match="per_class"):
        Recalibrate(per_class=0)


def test_statistics_are_a_plain_sum() -> None:
    z, y = torch.randn(9, 2, dtype=torch.float64), torch.arange(9) % 3
    a = class_statistics.from_features(z, y, 3)
    b = a + a
    assert isinstance(b, Statistics)
    torch.testing.assert_close(b.mean(), a.mean())


def test_a_head_is_trained_on_the_batches_of_an_epoch_while_the_next_one_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU would otherwise wait until the batches of all epochs are drawn."""
    events: list[str] = []
    drawn, trained = batching.random.permutation, retraining.linear_gradient

    def draw(key: int, n: int) -> Any:
        events.append("draw")
        return drawn(key, n)

    def train(params: Tree, batch: Features) -> Tree:
        events.append("step")
        return trained(params, batch)

    monkeypatch.setattr(batching.random, "permutation", draw)
    monkeypatch.setattr(retraining, "linear_gradient", train)
    monkeypatch.setattr(retraining, "STEPS_PER_GRAPH", 2)
    model = build("mlp", (4,), 3)
    z, y = torch.randn(8, model.features), torch.arange(8) % 3
    head = {name: p for name, p in model.named_parameters() if name.startswith("classifier")}
    retrain(model, head, z, y, SGD(0.1), epochs=2, batch_size=2, key=1)
    assert events == [*["draw", *["step"] * 4] * 2]
