"""Gaussian mechanism: published values, `dp-accounting`, and the noise itself."""

from __future__ import annotations

import math
import os
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm

import fedhead as fh
from fedhead.privacy import gaussian, noise
from fedhead.privacy.dp import DP, Release

budgets = st.tuples(st.floats(0.01, 50), st.floats(1e-12, 0.1))


@pytest.mark.parametrize(
    ("epsilon", "sigma"),
    # δ = 1e-5; the classical √(2 ln(1.25/δ))/ε is 4.84 at ε = 1 (Balle and Wang, 2018, Figure 1 shows the ratio)
    [(0.5, 7.0318), (1.0, 3.7306), (2.0, 1.9938), (8.0, 0.6002)],
)
def test_sigma_is_the_published_one(epsilon: float, sigma: float) -> None:
    assert 1 / gaussian.mu_of(epsilon, 1e-5) == pytest.approx(sigma, abs=1e-4)


@given(budgets)
@settings(max_examples=100, deadline=None)
def test_delta_of_mu_is_the_given_one(budget: tuple[float, float]) -> None:
    epsilon, delta = budget
    mu = gaussian.mu_of(epsilon, delta)
    naive = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert naive == pytest.approx(delta, rel=1e-4)
    assert gaussian.delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-9)
    assert gaussian.epsilon_of(delta, mu) == pytest.approx(epsilon, rel=1e-7)
    assert gaussian.mu_of(epsilon * 1.01, delta) > mu > gaussian.mu_of(epsilon, delta * 0.99)


@given(budgets)
@settings(max_examples=15, deadline=None)
def test_accounting_equals_dp_accounting(budget: tuple[float, float]) -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    epsilon, delta = budget
    loss = pld.GaussianPrivacyLoss.from_privacy_guarantee(_parameters(epsilon, delta))
    assert 1 / gaussian.mu_of(epsilon, delta) == pytest.approx(loss.standard_deviation, rel=1e-4)
    assert loss.get_delta_for_epsilon(epsilon) <= delta * (1 + 1e-6)


def _parameters(epsilon: float, delta: float) -> object:
    common = pytest.importorskip("dp_accounting.pld.common")
    return common.DifferentialPrivacyParameters(epsilon, delta)


def test_releases_compose_as_one_of_larger_mu() -> None:
    mu = gaussian.mu_of(1.0, 1e-5)
    assert gaussian.compose([mu / math.sqrt(3)] * 3) == pytest.approx(mu)
    assert gaussian.epsilon_of(1e-5, 0.0) == 0.0


def test_shares_of_clients_add_up_to_the_whole_noise() -> None:
    release = Release(DP(1.0), 1)
    stage, task = fh.NCM(release=release), SimpleNamespace(model=SimpleNamespace(features=3), noise_shares=25)
    whole = release.deviations(3, False)
    single, total = (stage.deviations(task, clients) for clients in (1, 25))  # type: ignore[arg-type]
    assert (single.sum, total.sum, total.count) == pytest.approx((whole.sum / 5, whole.sum, whole.count))


def test_noise_has_the_claimed_variance_and_shares_add_up_to_it() -> None:
    source = noise.generator()
    whole = noise.gaussian(source, (200_000,), 3.0)
    parts = sum(noise.gaussian(source, (200_000,), 3.0 / 5) for _ in range(25))
    for drawn in (whole, parts):
        assert float(drawn.mean()) == pytest.approx(0, abs=5 * 3 / math.sqrt(200_000))
        assert float(drawn.var()) == pytest.approx(9, rel=5 * math.sqrt(2 / 200_000))


def test_noise_comes_from_entropy_unless_a_test_asks_for_a_seed() -> None:
    np.random.seed(0)  # noqa: NPY002 (must have no effect)
    one, again, other, secret, second = (
        float(noise.gaussian(noise.generator(*path), (), 1.0))
        for path in ((3, "ridge", 0), (3, "ridge", 0), (3, "ridge", 1), (), ())
    )
    assert one == again
    assert len({one, other, secret, second}) == 4


def test_noise_from_entropy_is_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the tests' seed
    drawn = noise.generator().standard_normal((20, 5000))
    assert kstest(drawn.ravel(), "norm").pvalue > 1e-6
    for byte, extreme in ((0, 9.155), (1, -9.155), (254, 0), (255, 0)):  # least and most of 63 bits, with both signs
        monkeypatch.setattr(os, "urandom", lambda size, byte=byte: bytes([byte] + [255 * (byte > 1)] * 7))
        assert noise.generator().standard_normal(()) == pytest.approx(extreme, abs=1e-3)
