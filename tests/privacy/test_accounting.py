"""Accounting of rounds and steps: closed form, published values, and `dp-accounting`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from fedhead.core.system.errors import BadInput
from fedhead.privacy import accounting, gaussian
from fedhead.privacy.accounting import epsilon_of, multiplier_of

ORDERS = np.arange(2, 257)


def rdp(rate: float, multiplier: float) -> np.ndarray:
    """RDP of the sampled Gaussian mechanism at integer orders (Mironov, Talwar and Zhang, 2019, Section 3.3)."""
    rows = []
    for order in ORDERS:
        k = np.arange(order + 1)
        binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        terms = binomial + k * math.log(rate) + (order - k) * math.log1p(-rate) + (k * k - k) / (2 * multiplier**2)
        rows.append(logsumexp(terms) / (order - 1))
    return np.array(rows)


def test_steps_without_sampling_compose_in_closed_form() -> None:
    assert accounting.mu_of({1.0: 16}, 8.0) == pytest.approx(0.5)
    assert epsilon_of({1.0: 16}, 8.0, 1e-5) == pytest.approx(gaussian.epsilon_of(1e-5, 0.5))
    assert multiplier_of({1.0: 16}, 2.0, 1e-5) == pytest.approx(4 / gaussian.mu_of(2.0, 1e-5))
    assert accounting.accountant_of({1.0: 16}) == "Gaussian differential privacy in closed form"


@pytest.mark.parametrize(
    ("rate", "multiplier", "steps", "published"),
    # δ = 1e-5, converted by ε = min RDP(α) + ln(1/δ)/(α − 1): Abadi et al. (2016), Section 3.2 (100 epochs, σ = 4), and
    # the table of the TensorFlow Privacy tutorial for MNIST, 60,000 samples in batches of 256
    [(0.01, 4.0, 10_000, 1.26), (256 / 60_000, 1.3, 15 * 60_000 // 256, 1.19), (256 / 60_000, 1.1, 14_062, 3.01)],
)
def test_epsilon_is_at_most_the_published_one(rate: float, multiplier: float, steps: int, published: float) -> None:
    pytest.importorskip("dp_accounting")
    each = rdp(rate, multiplier) * steps
    assert min(each + math.log(1e5) / (ORDERS - 1)) == pytest.approx(published, abs=0.015)
    # the conversion of Canonne, Kamath and Steinke (2020), Proposition 12, is the tighter one of today
    tight = min(each + np.log1p(-1 / ORDERS) + math.log(1e5) / (ORDERS - 1) - np.log(ORDERS) / (ORDERS - 1))
    assert epsilon_of({rate: steps}, multiplier, 1e-5) == pytest.approx(tight, rel=2e-3)


def test_epsilon_of_the_tutorial_with_the_default_orders_of_dp_accounting() -> None:
    library = pytest.importorskip("dp_accounting")
    accountant = library.rdp.RdpAccountant()
    accountant.compose(library.PoissonSampledDpEvent(256 / 60_000, library.GaussianDpEvent(1.1)), 3515)
    epsilon = epsilon_of({256 / 60_000: 3515}, 1.1, 1e-5)
    assert epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3) == pytest.approx(1.281, abs=1e-3)


def test_multiplier_spends_the_budget_and_no_more() -> None:
    pytest.importorskip("dp_accounting")
    multiplier = multiplier_of({0.1: 50}, 2.0, 1e-5)
    assert epsilon_of({0.1: 50}, multiplier, 1e-5) <= 2.0
    assert epsilon_of({0.1: 50}, multiplier * 0.997, 1e-5) > 2.0
    assert "dp-accounting" in accounting.accountant_of({0.1: 50})


def test_sampled_steps_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    accounting._require.cache_clear()
    accounting._rdp.cache_clear()
    with pytest.raises(BadInput, match="pip install 'fedhead\\[privacy\\]'"):
        epsilon_of({0.1: 10}, 1.0, 1e-5)
    accounting._require.cache_clear()
