"""Composition of the steps of a training: privacy loss of the sampled Gaussian mechanism.

Without sampling, the composition is exact and in closed form (`fedhead.privacy.gaussian`). With sampling, Rényi
differential privacy (Mironov, 2017) is computed by `dp-accounting`, of the extra `privacy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from scipy.optimize import brentq

from fedhead.core.system.errors import BadInput
from fedhead.privacy import gaussian

# α of RDP: few orders that are no integers, since they take longest
ORDERS = (2, 2.5, 3, 3.5, 4, 4.5, *range(5, 33), 36, 40, 48, 64, 96, 128, 256)
_PRECISION = 1e-3  # of a multiplier that is solved for, relative


Steps = Mapping[float, int]  # number of steps by q, the probability of each record (Poisson sampling)


def epsilon_of(steps: Steps, multiplier: float, delta: float) -> float:
    """Return ε of a training.

    Args:
        steps: Steps of the training.
        multiplier: z, deviation of the noise on a sum of records of norm 1.
        delta: δ.

    >>> f"{epsilon_of({1.0: 10}, 8.0, 1e-5):.3f}"
    '1.535'
    """
    if (mu := mu_of(steps, multiplier)) is not None:
        return gaussian.epsilon_of(delta, mu)
    rdp = sum(count * _rdp(rate, multiplier) for rate, count in steps.items())
    return float(_require().rdp.compute_epsilon(ORDERS, rdp, delta)[0])


def mu_of(steps: Steps, multiplier: float) -> float | None:
    """Return μ of Gaussian differential privacy; None if records are sampled."""
    return None if any(rate < 1 for rate in steps) else math.sqrt(sum(steps.values())) / multiplier


def multiplier_of(steps: Steps, epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier z of a training that spends at most ε, to a tenth of a per cent."""
    highest = math.sqrt(sum(steps.values())) / gaussian.mu_of(epsilon, delta)  # without sampling
    if mu_of(steps, 1.0) is not None:
        return highest

    def excess(x: float) -> float:
        return math.log(max(epsilon_of(steps, math.exp(x), delta), 1e-300) / epsilon)

    x = math.log(highest)
    while excess(x) > 0:  # RDP is an upper bound, which may exceed the exact ε
        x += 1
    while excess(x - 1) <= 0:
        x -= 1
    solved = float(brentq(excess, x - 1, x, xtol=_PRECISION / 2))
    return math.exp(solved if excess(solved) <= 0 else solved + _PRECISION)


def accountant_of(steps: Steps) -> str:
    """Return the name of the accountant, for records."""
    if mu_of(steps, 1.0) is not None:
        return "Gaussian differential privacy in closed form"
    return f"RDP of dp-accounting {version('dp-accounting')}"


@lru_cache(maxsize=4096)
def _rdp(rate: float, multiplier: float) -> Any:
    """Return the Rényi differential privacy of one step, at all `ORDERS`."""
    library = _require()
    accountant = library.rdp.RdpAccountant(ORDERS)
    accountant.compose(library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(multiplier)))
    return accountant._rdp  # kept, since a composition of many steps would compute it again for every number of steps


@lru_cache(maxsize=1)
def _require() -> Any:
    """Import dp-accounting, which takes seconds."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        raise BadInput(
            "privacy with sampled clients or batches is accounted for by dp-accounting: pip install 'fedhead[privacy]'"
        ) from error
    return dp_accounting
