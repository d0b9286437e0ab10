"""The samplers' rules: who is selected, how often, and that the weighted one is unbiased."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from simulations import make_experiment

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.engine.policies import sampling

SIZES = {0: 9, 1: 5, 3: 14, 4: 3, 6: 30, 9: 1}
RULES = sorted(fh.SAMPLERS)


def drawn(name: str, rounds: int, count: int = 3, seed: int = 0) -> list[list[int]]:
    sampler = fh.SAMPLERS[name]()
    return [sampling.draw(sampler, number, count, SIZES, seed).clients for number in range(1, rounds + 1)]


@pytest.mark.parametrize("name", [name for name in RULES if name != "poisson"])
def test_so_many_clients_as_asked_for_each_once_and_all_of_them_if_all_are_asked_for(name: str) -> None:
    for count in range(1, 7):
        for cohort in drawn(name, 40, count):
            assert len(cohort) == len(set(cohort)) == count
            assert set(cohort) <= set(SIZES)
    assert drawn(name, 5, 99) == [list(SIZES)] * 5
    assert {k for cohort in drawn(name, 300, 2) for k in cohort} == set(SIZES)


def test_poisson_takes_each_client_with_the_same_probability_independently() -> None:
    cohorts = drawn("poisson", 3000, 2)
    for k in SIZES:
        assert sum(k in cohort for cohort in cohorts) / 3000 == pytest.approx(1 / 3, abs=0.04)
    assert sum({0, 1} <= set(cohort) for cohort in cohorts) / 3000 == pytest.approx(1 / 9, abs=0.03)
    assert drawn("poisson", 5, 99) == [list(SIZES)] * 5


@pytest.mark.parametrize("name", RULES)
def test_a_cohort_depends_on_seed_and_round_alone(name: str) -> None:
    assert drawn(name, 9) == drawn(name, 9)
    assert (drawn(name, 20) == drawn(name, 20, seed=1)) == (name == "round_robin")
    assert len({tuple(cohort) for cohort in drawn(name, 40)}) > 1


def test_uniform_draws_never_change() -> None:
    assert drawn("uniform", 4) == [[0, 1, 9], [1, 3, 4], [1, 3, 6], [3, 4, 6]]


@pytest.mark.parametrize(
    ("participation", "size"), [(0.01, 1), (0.25, 3), (0.24, 2), (0.45, 5), (0.44, 4), (0.8, 8), (1.0, 10)]
)
def test_a_cohorts_size_is_rounded_half_up_with_one_at_least(participation: float, size: int) -> None:
    experiment = make_experiment([], fh.FedAvg(), local=fh.LocalTraining(), rounds=1, participation=participation)
    assert experiment.cohort_size(10) == size


def test_round_robin_goes_through_all_clients_before_one_comes_again() -> None:
    first, second, third = drawn("round_robin", 3)
    assert sorted(first + second) == list(SIZES)
    assert third == first


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_weighted_probabilities_are_proportional_to_samples_up_to_1(count: int) -> None:
    share = fh.WeightedSampler().inclusion(count, SIZES)
    assert sum(share.values()) == pytest.approx(count)
    free = {k: p for k, p in share.items() if p < 1}
    assert len({round(p / SIZES[k], 12) for k, p in free.items()}) == 1
    rounds = 4000
    often = Counter(k for cohort in drawn("weighted", rounds, count) for k in cohort)
    for k, p in share.items():
        assert often[k] / rounds == pytest.approx(p, abs=4 * (p * (1 - p) / rounds) ** 0.5 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_weighted_mean_by_samples_over_probability_is_unbiased_and_by_samples_is_not(count: int) -> None:
    """Σ n_k/π_k x_k has the expectation Σ n_k x_k, and its weights add up to Σ n in every round."""
    rounds, total = 4000, sum(SIZES.values())
    values = {k: float(v) for k, v in zip(SIZES, (3.0, -1.0, 2.0, 8.0, -4.0, 20.0), strict=True)}
    wanted = sum(SIZES[k] * values[k] for k in SIZES) / total
    found, naive = [], []
    for number in range(1, rounds + 1):
        cohort = sampling.draw(fh.WeightedSampler(), number, count, SIZES, 0)
        weights = {k: SIZES[k] / cohort.inclusion[k] for k in cohort.clients}
        assert sum(weights.values()) == pytest.approx(total)
        found.append(sum(w * values[k] for k, w in weights.items()) / total)
        naive.append(np.average([values[k] for k in cohort.clients], weights=[SIZES[k] for k in cohort.clients]))
    deviation = float(np.std(found)) / rounds**0.5
    assert np.mean(found) == pytest.approx(wanted, abs=4 * deviation)
    if count > 1:
        assert abs(float(np.mean(naive)) - wanted) > 10 * float(np.std(naive)) / rounds**0.5


# -- own samplers -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Own(fh.Sampler):
    """Returns what a test wants."""

    found: Any = (0, 3)
    share: Any = None

    def select(self, round: int, count: int, sizes: Any, seed: int) -> Any:
        return self.found() if callable(self.found) else self.found

    def inclusion(self, count: int, sizes: Any) -> Any:
        return self.share


def test_a_samplers_numbers_are_sorted_and_may_be_numpys() -> None:
    assert sampling.draw(Own(np.array([3, 0])), 1, 2, SIZES, 0).clients == [0, 3]
    assert sampling.draw(Own([]), 1, 2, SIZES, 0).clients == []


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (Own(3), "sampler Own: select returned int: return a list of clients' numbers"),
        (Own([0, 2]), "sampler Own: select returned 2, which is none of the clients"),
        (Own(["0"]), "sampler Own: select returned '0', which is none"),
        (Own([True]), "sampler Own: select returned True, which is none"),
        (Own([0, 0]), r"sampler Own: select returned a client twice: \[0, 0\]"),
        (Own(lambda: 1 // 0), "sampler Own: the function raised ZeroDivisionError"),
        (Own([0], {3: 0.5}), "sampler Own: inclusion has no probability above 0 and at most 1 for client 0"),
        (Own([0], {0: 0.0}), "sampler Own: inclusion has no probability above 0"),
        (Own([0], 0.5), "sampler Own: inclusion has no probability above 0"),
    ],
)
def test_what_is_no_selection_is_refused(own: Own, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        sampling.draw(own, 1, 2, SIZES, 0)


def test_a_sampler_that_draws_elsewhere_is_refused() -> None:
    rng = np.random.RandomState(0)
    with pytest.raises(BadInput, match="selects other clients when it is asked again: let it depend on its arguments"):
        sampling.check(Own(lambda: rng.permutation(list(SIZES))[:3]), 3, SIZES, 0)
