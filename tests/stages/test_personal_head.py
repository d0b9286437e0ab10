"""Personal heads: those of all samples with the client's own weighted more, and the weight that suits each client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulations import make_simulation, make_world, run
from sklearn.linear_model import Ridge as SklearnRidge
from small import federation, network

import fedhead as fh
from fedhead.algorithm.task import LocalTraining
from fedhead.calibration.statistics import from_features
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.server import make_downlink
from fedhead.engine.rounds.rounds import run_stage
from fedhead.executors.forward import ForwardExecutor
from fedhead.executors.loop import Loop
from fedhead.methods.fedavg import FedAvg
from fedhead.stages.personal_head import HEAD, SHARE, SHARES, PersonalHead, _mixed, _with_matrix, held_out
from fedhead.stages.recalibrate import features

STAGES: list[PersonalHead] = [fh.PersonalLDA(), fh.PersonalRidge()]
SETTINGS: dict[str, Any] = {"rounds": 0, "local": LocalTraining()}


def contrary(clients: int = 6, share: float = 0.5) -> fh.Federation:
    """Clients of which a share calls class 0 what the others call class 1."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(clients * 100, 5)).astype("float32")
    owner = np.repeat(np.arange(clients), 100)
    y = (x[:, 0] + 0.3 * draw.normal(size=len(x)) > 0).astype(int)
    y = np.where(owner < share * clients, 1 - y, y)
    return fh.Federation.from_arrays(x, y, partition="natural", groups=owner, client_test=0.3)


MODEL = "mlp(hidden=[32])"


@pytest.mark.parametrize("intercept", [True, False])
def test_ridge_on_interpolated_sums_is_scikit_learns_with_weighted_samples(intercept: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    z, y = torch.randn(60, 4, generator=draw, dtype=torch.float64), torch.arange(60) % 3
    mine = torch.arange(60) < 15
    total, own = (_with_matrix(from_features(z[i], y[i], 4, "pooled").tree()) for i in (slice(None), mine))
    stage, alpha = fh.PersonalRidge(intercept=intercept), torch.tensor(0.7, dtype=torch.float64)
    for share in SHARES:
        head = stage.head_of(_mixed(total, own, share), Tree(alpha=alpha, relative=torch.zeros_like(alpha)))
        weight = (1 - share) + share * 60 / 15 * mine.double()
        whole = SklearnRidge(alpha=0.7, fit_intercept=intercept)
        whole.fit(z.numpy(), np.eye(3)[y.numpy()], sample_weight=weight.numpy())
        np.testing.assert_allclose(head["weight"][:3], whole.coef_, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(head["bias"][:3], np.broadcast_to(whole.intercept_, 3), rtol=1e-9, atol=1e-10)
        assert int((z @ head["weight"].T + head["bias"]).argmax(1).max()) < 3  # class 3 is nobody's


def test_lda_on_interpolated_sums_is_that_of_repeated_samples() -> None:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    z = torch.randn(60, 4, generator=draw, dtype=torch.float64) + y[:, None]
    mine = torch.arange(60) < 20
    total, own = (_with_matrix(from_features(z[i], y[i], 3, "pooled").tree()) for i in (slice(None), mine))
    # t = 1/2: all samples count 1/2 and the client's own 1/2 + 60/20/2 = 2, so four times as much
    again = torch.cat([z, z[mine], z[mine], z[mine]]), torch.cat([y, y[mine], y[mine], y[mine]])
    expected = fh.LDA(shrinkage=0.1).fit(from_features(*again, 3, "pooled"))
    chosen = Tree(shrinkage=torch.tensor(0.1, dtype=torch.float64))
    found = fh.PersonalLDA().head_of(_mixed(total, own, 0.5), chosen)
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_clients_that_differ_by_design_choose_their_own_samples(stage: PersonalHead) -> None:
    result = fh.run(contrary(), MODEL, rounds=0, stages=[stage, "lda" if stage.name == "personal_lda" else "ridge"])
    own, total = result.stages[stage.name], result.stages[stage.name.removeprefix("personal_")]
    assert own.accuracy == total.accuracy  # the global head is the same
    assert own.personal is not None
    assert total.personal is not None
    assert own.personal > total.personal + 20
    assert all(float(own.states[k][SHARE]) > 0 for k in range(6))
    module = result.module(client=0, stage=stage.name)
    assert isinstance(module.classifier, torch.nn.Linear)
    d = 32
    sums = 8 * (2 + 2 * d + d * (d + 1) // 2)
    assert own.metrics["bytes_up"] == total.metrics["bytes_up"]
    assert own.metrics["bytes_down"] > total.metrics["bytes_down"] + 6 * sums


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_clients_that_are_alike_lose_nothing(stage: PersonalHead) -> None:
    found = fh.run(contrary(share=0.0), MODEL, rounds=0, stages=[stage]).stages[stage.name]
    assert found.personal is not None
    assert found.personal > 80
    shares = [float(found.states[k][SHARE]) for k in range(6)]
    assert np.mean(shares) < 0.6


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
@pytest.mark.parametrize("min_class_count", [1, 3])
def test_many_clients_at_once_compute_the_same_heads(stage: PersonalHead, min_class_count: int) -> None:
    simulation = make_simulation(
        federation(), [network("group")], FedAvg(), dtype=torch.float64, min_class_count=min_class_count, **SETTINGS
    )
    bound = stage.on_method(simulation.experiment.method)
    result = run_stage(simulation.using(Loop()), stage)
    downlink = make_downlink(bound, result.server, simulation.clients.holders, simulation.clients.task_of)
    (job,) = simulation.clients.work(bound, downlink, simulation.states, 1)
    for k, reply in zip(job.clients, ForwardExecutor().train(job), strict=True):
        for name, t in result.states[k][HEAD].items():
            torch.testing.assert_close(reply.keep[HEAD][name], t, rtol=1e-9, atol=1e-9)
        assert float(reply.keep[SHARE]) == float(result.states[k][SHARE])


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_over_flower_personal_heads_are_the_same(stage: PersonalHead, tmp_path: Path) -> None:
    world = make_world(contrary(), {"own": _mlp()}, FedAvg(), SETTINGS, tmp_path, stages=[stage])
    found = run(world.transport(world.grid()), stages=[stage]).stages[stage.name]
    expected = run(make_simulation(contrary(), [_mlp()], FedAvg(), **SETTINGS), stages=[stage]).stages[stage.name]
    assert found.personal == expected.personal
    assert found.metrics["clients"] == expected.metrics["clients"]
    assert found.metrics["bytes_up"] == expected.metrics["bytes_up"]


def _mlp() -> fh.SplitModel:
    return fh.build("mlp", (5,), 2, hidden=[8])


def test_the_weight_is_the_one_that_suits_held_out_samples_which_no_candidate_has_seen() -> None:
    fed, alpha = contrary(clients=3, share=0.4), 0.5
    result = fh.run(fed, MODEL, rounds=0, stages=[fh.PersonalRidge(alpha=alpha)])
    task = result.trained.clients.task
    assert result.weights is not None
    for k, rows in enumerate(fed.indices):
        own, others = list(rows), [row for j, other in enumerate(fed.indices) if j != k for row in other]
        held = [row for row, left in zip(own, held_out(0.2, torch.ones(len(own)), 0).tolist(), strict=True) if left]
        used = [*[row for row in own if row not in held], *others]
        z = features(task.model, result.weights, result.trained.clients.pool, torch.tensor([*used, *held]))[0].double()
        labels = np.eye(2)[fed.train.y[torch.tensor([*used, *held])].numpy()]
        n, fitted, errors = len(used), len(own) - len(held), []
        for share in SHARES:
            weight = np.full(n, 1 - share)
            weight[:fitted] += share * n / fitted
            whole = SklearnRidge(alpha=alpha).fit(z[:n].numpy(), labels[:n], sample_weight=weight)
            errors.append(((whole.predict(z[n:].numpy()) - labels[n:]) ** 2).sum())
        assert float(result.stages["personal_ridge"].states[k][SHARE]) == SHARES[int(np.argmin(errors))]


def test_held_out_samples_are_drawn_whatever_the_order_of_labels_and_the_padding() -> None:
    y, weight = torch.arange(60) % 5, torch.ones(60)
    for seed in range(3):
        mask = held_out(0.2, weight, seed)
        assert int(mask.sum()) == 12
        assert len(y[mask].unique()) >= 4  # every fifth sample would be of one class
        assert torch.equal(held_out(0.2, torch.cat([weight, torch.zeros(9)]), seed)[:60], mask)
    assert not torch.equal(held_out(0.2, weight, 0), held_out(0.2, weight, 1))


def test_what_the_collecting_stage_refuses_is_refused_before_anything_is_computed() -> None:
    cut = fh.Federation.from_arrays(torch.randn(30, 4), torch.arange(30) % 2, clients=3, classes=3)
    with pytest.raises(BadInput, match=r"^personal_lda: no client .* class 2.*stage\.personal_lda\.absent=never"):
        fh.run(cut, "mlp(hidden=[4])", rounds=0, stages=["personal_lda"])
    found = fh.run(cut, "mlp(hidden=[4])", rounds=0, stages=[fh.PersonalRidge(absent="never")])
    assert found.stages["personal_ridge"].weights is not None
    with pytest.raises(BadInput, match="can't follow local"):
        fh.run(cut, "mlp(hidden=[4])", "local", rounds=1, stages=["personal_ridge"])
    with pytest.raises(BadInput, match="validation"):
        fh.PersonalLDA(validation=1.0)


def test_a_warning_says_that_personal_heads_can_not_be_measured(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    fh.run(contrary(2), "mlp(hidden=[4])", rounds=0, stages=["personal_lda"])
    assert "client_test" not in caplog.text
    alone = replace(contrary(2), client_test=None)
    fh.run(alone, "mlp(hidden=[4])", rounds=0, stages=["personal_lda"])
    assert "personal_lda: clients have no own test samples: set client_test=0.2" in caplog.text
