"""Differential privacy of class statistics: sensitivity, noise, heads, records and refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedhead as fh
from fedhead.calibration.private_statistics import add_noise
from fedhead.calibration.sums import Kind, batch_sums
from fedhead.models.closed_form_heads import bounded
from fedhead.privacy import gaussian
from fedhead.privacy.dp import DP, Release
from fedhead.report.page import content, page

HEAD = "mlp(hidden=[])"
KINDS: tuple[Kind, ...] = ("means", "pooled", "full", "diagonal")


class Ones:
    """Generator whose draws are all 1, so that noise is its deviation."""

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.ones(shape)


def digits(clients: int = 3, **options: Any) -> fh.Federation:
    return fh.Federation.load("digits", "iid", clients=clients, **options)


def head(federation: fh.Federation, stages: list[Any], *privacy: str, **options: Any) -> fh.Result:
    return fh.run(federation, HEAD, rounds=0, stages=stages, privacy=list(privacy), executor="loop", **options)


# -- the mechanism --------------------------------------------------------------------------------
@given(
    st.integers(0, 2**32), st.sampled_from(KINDS), st.floats(0.05, 20), st.sampled_from([None, 0.1, 3.0]),
    st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_one_record_changes_the_release_by_at_most_its_sensitivity(
    seed: int, kind: Kind, scale: float, clip: float | None, releases: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    d, classes, release = 4, 3, Release(DP(2.0, clip=clip), releases)
    z, y = scale * torch.randn(6, d, generator=rng), torch.randint(classes, (6,), generator=rng)

    def sums(size: int) -> fh.Tree:
        return batch_sums(bounded(z[:size], clip), y[:size], torch.ones(size), classes, kind)

    with_record, without = sums(6), sums(5)
    deviations = add_noise(without, release.deviations(d, kind != "means"), Ones()) - without  # type: ignore[arg-type]
    distance = sum(float(((with_record[n] - without[n]) / deviations[n]).square().sum()) for n in without)
    assert math.sqrt(distance) <= release.mu * (1 + 1e-6)
    if clip is None and kind in ("means", "pooled", "full"):  # exact: no smaller noise would do
        assert math.sqrt(distance) >= release.mu * (1 - 1e-6)


def test_features_of_any_weights_stay_within_the_bound() -> None:
    z = torch.tensor([[1e-170, 0.0], [1e-163, 1e-163], [1e300, -1e300], [torch.nan, 1.0], [torch.inf, 1.0]]).double()
    for clip in (None, 1.0):
        for center in (None, torch.tensor([1.0, 0.0]).double(), torch.tensor([1 - 1e-16, 1e-163]).double()):
            assert bool((bounded(z, clip, center).norm(dim=1) <= 1 + 1e-8).all())


def test_the_last_bits_of_noisy_numbers_reveal_nothing() -> None:
    """An entry of an empty class has no other bits than one of a class with a tiny sum."""
    deviations, source = Release(DP(1.0), 1).deviations(3, False), np.random.default_rng(0)
    for exact in (0.0, 1e-9, 0.3):
        sums = fh.Tree(count=torch.full((4,), exact).double(), sum=torch.full((4, 3), exact).double())
        noisy = add_noise(sums, deviations, source)
        for name, sigma in (("count", deviations.count), ("sum", deviations.sum)):
            steps = noisy[name] / 2.0 ** (math.floor(math.log2(sigma)) - 20)
            assert torch.equal(steps, steps.round())


def test_noise_of_every_entry_has_the_claimed_variance() -> None:
    draws, d = 20_000, 3
    deviations = Release(DP(1.0), 1).deviations(d, True)
    zeros = fh.Tree(count=torch.zeros(draws, 2), sum=torch.zeros(draws, 2, d), outer=torch.zeros(draws, 6))
    drawn = add_noise(zeros.map(torch.Tensor.double), deviations, np.random.default_rng(0))
    off = deviations.moment / math.sqrt(2)
    expected = {
        "count": torch.full((2,), deviations.count),
        "sum": torch.full((2, d), deviations.sum),
        "outer": torch.tensor([deviations.moment, off, off, deviations.moment, off, deviations.moment]),
    }
    for name, sigma in expected.items():
        torch.testing.assert_close(drawn[name].var(0), sigma.double().square(), rtol=0.06, atol=0.0)


def test_releases_of_a_run_compose_to_its_budget() -> None:
    result = head(digits(), ["ncm", "ridge"], "dp(epsilon=2)")
    given = [stage.metrics["privacy"] for stage in result.stages.values()]
    assert all(1 < each["epsilon"] < 2 for each in given)
    assert gaussian.epsilon_of(1e-5, gaussian.compose(each["mu"] for each in given)) == pytest.approx(2)


# -- heads ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("stage", "least"), [("ncm", 85), ("ridge", 80), ("lda", 80), ("personal_ridge", 80)])
def test_heads_of_one_site_stay_accurate(stage: str, least: float) -> None:
    result = head(digits(1), [stage], "dp(epsilon=8, test_seed=0)")
    assert (result.stages[stage].accuracy or 0) > least


def test_ccvr_has_noise_and_bounded_features(tmp_path: Path) -> None:
    federation = digits(1)
    result = fh.run(
        federation, "mlp(hidden=[16])", rounds=2, stages=["ccvr(samples=200)"], privacy=["dp(8, test_seed=0)"], lr=0.1
    )
    assert result.stages["ccvr"].accuracy is not None
    x = federation.test.x[:50]  # type: ignore[union-attr]
    module = result.module(stage="ccvr")
    with torch.no_grad():
        scores = module(result.transform(x))
    np.testing.assert_allclose(scores.numpy(), result.scores(x, stage="ccvr"), atol=1e-4)


def test_a_module_bounds_features_as_the_stage_does() -> None:
    federation = digits(2)
    result = head(federation, ["ridge"], "dp(epsilon=8, test_seed=0)")
    x = federation.test.x[:50]  # type: ignore[union-attr]
    with torch.no_grad():
        scores = result.module(stage="ridge")(result.transform(x))
    np.testing.assert_allclose(scores.numpy(), result.scores(x, stage="ridge"), atol=1e-5)


def test_personal_heads_use_their_own_samples_without_noise() -> None:
    federation = digits(4, client_test=0.3)
    noisy = head(federation, ["personal_ridge"], "dp(epsilon=0.05, test_seed=1)").stages["personal_ridge"]
    assert (noisy.accuracy or 0) < 60 < 80 < (noisy.personal or 0)


def test_more_budget_costs_less_accuracy() -> None:
    federation = digits(3)
    means = [
        np.mean([head(federation, ["ridge"], f"dp({e}, test_seed={s})").stages["ridge"].accuracy for s in range(3)])
        for e in (0.3, 3, 30)
    ]
    assert means[0] < means[1] < means[2]


def test_executors_add_the_same_noise_in_a_test_and_others_never() -> None:
    federation = digits(3)
    runs = [
        fh.run(federation, HEAD, rounds=0, stages=["ridge"], privacy=[f"dp(1{seed})"], executor=executor)
        for executor in ("loop", "stack")
        for seed in (", test_seed=3", "")
    ]
    first, second, third, fourth = (run.stages["ridge"].weights["classifier.weight"] for run in runs)  # type: ignore[index]
    torch.testing.assert_close(first, third, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(second, fourth)
    assert [run.stages["ridge"].metrics["privacy"]["secret"] for run in runs] == [False, True, False, True]


def test_small_classes_are_not_left_out_by_their_exact_counts() -> None:
    """A row that is left out at 4 samples and sent at 5 would show the change of one sample."""
    from fedhead.engine.clients.clients import Clients

    federation = digits(2)
    exact = head(federation, ["ncm"], "dp(1e6, test_seed=0)")
    simulation = exact.trained.with_data()
    clients: Clients = simulation.clients
    clients.leave_out_classes_below(1000)
    stage = simulation.experiment.stages[0]
    context = simulation.context(1)
    from dataclasses import replace

    sent = simulation.exchange(replace(context, algorithm=stage), [0, 1]).replies
    assert all(bool((reply.send["statistics"]["count"] > 10).all()) for reply in sent.values())
    assert not sent.left_out


# -- refusals -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("privacy", "stages", "words"),
    [
        ("dp(epsilon=0)", ["ridge"], "epsilon: 0 is out of range"),
        ("dp(delta=1)", ["ridge"], "delta: 1 is out of range"),
        ("dp(delta=0.001)", ["ridge"], r"must be below 1/n = 0.0007"),
        ("dp(clip=0)", ["ridge"], "clip: 0 is out of range"),
        ("dp", ["qda"], "can't protect what clients send in the stage qda"),
        ("dp", ["fedcof"], "can't protect what clients send in the stage fedcof"),
        ("dp", ["ccvr(covariance=low-rank)"], "needs replies that are sums"),
        ("dp", ["finetune_ccvr"], "can't protect what clients send in the stage finetune_ccvr"),
    ],
)
def test_impossible_protections_are_refused(privacy: str, stages: list[Any], words: str) -> None:
    with pytest.raises(fh.BadInput, match=words):
        head(digits(), stages, privacy)


def test_protections_without_effect_are_refused() -> None:
    with pytest.raises(fh.BadInput, match="dp needs a stage that sends class statistics"):
        fh.run(digits(), HEAD, rounds=1, privacy=["dp"])
    with pytest.raises(fh.BadInput, match="two protections of the stages"):
        head(digits(), ["ridge"], "dp", "dp(2)")


def test_means_without_noise_are_refused() -> None:
    x, y = torch.randn(60, 4).numpy(), np.arange(60) % 3
    federation = fh.Federation.from_arrays(x, y, "iid", clients=3, normalize="standard")
    with pytest.raises(fh.BadInput, match=r"normalize .standard, quantiles. and missing=mean compute means"):
        fh.run(federation, HEAD, rounds=0, stages=["ridge"], privacy=["dp(delta=1e-3)"])


def test_a_spent_budget_ends_a_run() -> None:
    result = head(digits(), ["ncm"], "dp")
    with pytest.raises(fh.BadInput, match="the privacy budget of this run is spent"):
        result.calibrate("ridge")


def test_a_private_run_is_not_extended_by_stages(tmp_path: Path) -> None:
    head(digits(), ["ncm"], "dp", out=tmp_path / "run")
    with pytest.raises(fh.BadInput, match="stages"):
        head(digits(), ["ncm", "ridge"], "dp", out=tmp_path / "run", resume=True)


def test_rounds_without_protection_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    fh.run(digits(), HEAD, rounds=1, stages=["ridge"], privacy=["dp"], executor="loop")
    assert "updates of fedavg's rounds are sent without noise" in caplog.text


def test_the_guarantee_is_in_the_run_folder(tmp_path: Path) -> None:
    head(digits(), ["ridge"], "dp(epsilon=2)", out=tmp_path / "run")
    loaded = fh.load(tmp_path / "run")
    given = loaded.guarantees[0]
    assert (given.release, given.epsilon, given.delta) == ("stage ridge", pytest.approx(2), 1e-5)
    assert (given.unit, given.neighbourhood, given.secret) == ("sample", "add or remove one", True)
    assert "each client adds all of the noise" in given.assumptions
    assert given.mechanism.startswith("Gaussian noise of deviation")
    assert given.accountant.startswith("analytic Gaussian mechanism")
    sections = {section.id: section for section in page.page(content.load([tmp_path / "run"])).sections}
    assert "each client adds all of the noise" in str(sections["privacy"])


# -- centers --------------------------------------------------------------------------------------
@pytest.mark.parametrize("stage", ["ridge", "lda", "ncm", "personal_ridge"])
def test_centered_heads_predict_like_their_module(stage: str) -> None:
    federation = digits(2)
    result = head(federation, [stage], "dp(epsilon=20, center=private, test_seed=0)")
    assert (result.stages[stage].accuracy or 0) > 85
    x = federation.test.x[:50]  # type: ignore[union-attr]
    with torch.no_grad():
        scores = result.module(stage=stage)(result.transform(x))
    np.testing.assert_allclose(scores.numpy(), result.scores(x, stage=stage), atol=1e-5)


@pytest.mark.parametrize("center", ["none", "private"])
def test_random_directions_send_less_and_predict_like_their_module(center: str) -> None:
    federation = digits(2)
    whole = head(federation, ["ridge"], "dp(epsilon=20, test_seed=0)").stages["ridge"].metrics["bytes_up"]
    for stage in ("ridge", "personal_ridge"):
        result = head(federation, [stage], f"dp(epsilon=20, center={center}, directions=32, test_seed=0)")
        assert (result.stages[stage].accuracy or 0) > 75
        assert result.stages[stage].metrics["bytes_up"] < whole / 2
        x = federation.test.x[:50]  # type: ignore[union-attr]
        with torch.no_grad():
            scores = result.module(stage=stage)(result.transform(x))
        np.testing.assert_allclose(scores.numpy(), result.scores(x, stage=stage), atol=1e-5)
    with pytest.raises(fh.BadInput, match="directions is 64, it must be fewer than the 64 features"):
        head(federation, ["ridge"], "dp(directions=64)")
    with pytest.raises(fh.BadInput, match="protects ccvr only without center and directions"):
        head(federation, ["ccvr"], "dp(directions=32)")


def test_a_private_center_is_part_of_the_budget() -> None:
    parts = [Release(DP(1.0, center="private"), 2)]
    deviations = [part(parts[0]).deviations(10, False).sum for part in (Release.of_center, Release.without_center)]
    whole = Release(DP(1.0), 2).deviations(10, False).sum
    assert math.hypot(*(1 / d for d in deviations)) == pytest.approx(1 / whole)
    assert parts[0].guarantee("ridge", 1).epsilon == pytest.approx(Release(DP(1.0), 2).guarantee("ridge", 1).epsilon)


def test_a_public_center_is_the_mean_of_public_samples() -> None:
    federation = fh.Federation.load("digits", "iid", clients=2, public="digits")
    result = head(federation, ["ncm"], "dp(epsilon=20, center=public, test_seed=0)")
    assert federation.public is not None
    z = result.transform(federation.public.x).flatten(1).double()
    (calibrated,) = result.stages["ncm"].server["calibrated"].values()
    torch.testing.assert_close(calibrated["classifier.center"], bounded(z, None).mean(0), atol=1e-6, rtol=1e-5)
    with pytest.raises(fh.BadInput, match="center=public needs public samples"):
        head(digits(), ["ncm"], "dp(center=public)")
