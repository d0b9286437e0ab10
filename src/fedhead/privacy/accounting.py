"""Composition of the steps of a training: privacy loss of the sampled Gaussian mechanism.

Without sampling, the composition is exact and in closed form (`fedhead.privacy.gaussian`). With sampling, Rényi
differential privacy (Mironov, 2017) is computed by `dp-accounting`, of the extra `privacy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from scipy.optimize import brentq

from fedhead.core.system.errors import BadInput
from fedhead.privacy import gaussian

# α of RDP: few orders that are no integers, since they take longest
ORDERS = (2, 2.5, 3, 3.5, 4, 4.5, *range(5, 33), 36, 40, 48, 64, 96, 128, 256)
_PRECISION = 1e-3  # of a multiplier that is solved for, relative


class Sampling(NamedTuple):
    """Records that take part in a step.

    Attributes:
        rate: q, probability of each record.
        population: Number of records, of which a fixed number is drawn without replacement; None: Poisson sampling.
    """

    rate: float
    population: int | None = None

    @property
    def sensitivity(self) -> float:
        """Change of a sum of records of norm 1 between neighbours; a fixed number means that one is replaced."""
        return 1.0 if self.population is None else 2.0


Steps = Mapping[Sampling, int]  # number of steps by their sampling


def epsilon_of(steps: Steps, multiplier: float, delta: float) -> float:
    """Return ε of a training.

    Args:
        steps: Steps of the training.
        multiplier: z, deviation of the noise on a sum of records of norm 1.
        delta: δ.

    >>> f"{epsilon_of({Sampling(1.0): 10}, 8.0, 1e-5):.3f}"
    '1.535'
    """
    if (mu := mu_of(steps, multiplier)) is not None:
        return gaussian.epsilon_of(delta, mu)
    rdp = sum(count * _rdp(sampling, multiplier) for sampling, count in steps.items())
    return float(_require().rdp.compute_epsilon(ORDERS, rdp, delta)[0])


def mu_of(steps: Steps, multiplier: float) -> float | None:
    """Return μ of Gaussian differential privacy; None if records are sampled."""
    if any(sampling.rate < 1 for sampling in steps):
        return None
    return gaussian.compose(sampling.sensitivity * math.sqrt(n) / multiplier for sampling, n in steps.items())


def multiplier_of(steps: Steps, epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier z of a training that spends at most ε, to a tenth of a per cent."""
    without_sampling = mu_of({sampling._replace(rate=1.0): count for sampling, count in steps.items()}, 1.0)
    assert without_sampling is not None, "nothing is sampled"
    highest = without_sampling / gaussian.mu_of(epsilon, delta)
    if mu_of(steps, 1.0) is not None:
        return highest

    def excess(x: float) -> float:
        return math.log(epsilon_of(steps, math.exp(x), delta) / epsilon)

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
def _rdp(sampling: Sampling, multiplier: float) -> Any:
    """Return the Rényi differential privacy of one step, at all `ORDERS`."""
    library, scaled = _require(), multiplier / sampling.sensitivity
    step = library.GaussianDpEvent(scaled)
    relation = library.NeighboringRelation.ADD_OR_REMOVE_ONE
    if sampling.population is None:
        step = library.PoissonSampledDpEvent(sampling.rate, step)
    else:
        relation = library.NeighboringRelation.REPLACE_ONE
        drawn = round(sampling.rate * sampling.population)
        step = library.SampledWithoutReplacementDpEvent(sampling.population, drawn, step)
    accountant = library.rdp.RdpAccountant(ORDERS, neighboring_relation=relation)
    accountant.compose(step)
    return accountant._rdp  # kept, since a composition of many steps would compute it again for every number of steps


@lru_cache(maxsize=1)
def _require() -> Any:
    """Import dp-accounting, which takes seconds."""
    try:
        version("dp-accounting")
        import dp_accounting
        import dp_accounting.rdp
    except (ImportError, PackageNotFoundError) as error:
        raise BadInput(
            "privacy with sampled clients or batches is accounted for by dp-accounting: pip install 'fedhead[privacy]'"
        ) from error
    return dp_accounting
