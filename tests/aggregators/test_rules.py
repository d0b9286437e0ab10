"""Every aggregator by hand: answers that follow from a few numbers, and what holds for all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhead.aggregators import AGGREGATORS
from fedhead.aggregators.base import Aggregator, mixed
from fedhead.aggregators.centered_clipping import CenteredClipping
from fedhead.aggregators.coordinate_median import CoordinateMedian
from fedhead.aggregators.geometric_median import GeometricMedian
from fedhead.aggregators.krum import Krum, MultiKrum
from fedhead.aggregators.trimmed_mean import TrimmedMean
from fedhead.core.components.registry import instance
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_rows import tree_mean

HONEST = 6  # and one hostile client, which every rule withstands with its defaults
RULES = sorted(AGGREGATORS)
MIXING = pytest.mark.parametrize("mixing", [0, 1])


def points(*rows: tuple[float, ...]) -> list[Tree]:
    """Updates whose first coordinate is in another tensor than the rest: a rule must see them as one vector."""
    return [Tree(a=torch.tensor(row[:1], dtype=torch.float64), b=torch.tensor(row[1:]).double()) for row in rows]


def line(*values: float) -> list[Tree]:
    return [Tree(a=torch.tensor([value], dtype=torch.float64)) for value in values]


def combined(rule: Aggregator, updates: list[Tree], previous: Tree | None = None) -> list[float]:
    assert len(updates) >= rule.min_clients()
    return torch.cat(list(rule.combine(updates, previous).values())).tolist()


def test_the_median_is_that_of_each_coordinate() -> None:
    # 1, 2, 9 and 5, 0, 7: the middle ones are 2 and 5, which no client sent together
    assert combined(CoordinateMedian(), points((1, 5), (2, 0), (9, 7))) == [2, 5]
    assert combined(CoordinateMedian(), line(4, 1, 100, 2)) == [3]  # of an even number, the mean of 2 and 4


def test_the_trimmed_mean_leaves_out_both_ends() -> None:
    assert combined(TrimmedMean(1), line(3, 100, 1, 2, -50)) == [2]  # the mean of 1, 2, 3
    assert combined(TrimmedMean(2), line(3, 100, 1, 2.5, -50)) == [2.5]
    assert TrimmedMean(2).min_clients() == 5


def test_krum_takes_the_update_with_the_nearest_neighbours() -> None:
    # K = 5, f = 1: each score is the sum of the two smallest squared distances:
    # 0: 1 + 6.25 = 7.25;  1: 1 + 2.25 = 3.25;  2.5: 2.25 + 4 = 6.25;  4.5: 4 + 12.25 = 16.25;  100: over 9,000 twice
    updates = line(0, 100, 2.5, 1, 4.5)
    assert combined(Krum(1), updates) == [1]
    assert combined(MultiKrum(1), updates) == [2]  # the mean of the four others than 100
    assert Krum(2).min_clients() == MultiKrum(2).min_clients() == 7


def test_the_geometric_median_of_a_quadrilateral_is_where_its_diagonals_cross() -> None:
    # for any z, ‖z − A‖ + ‖z − C‖ ≥ ‖A − C‖, equal on the diagonal alone; likewise B and D: both hold at the crossing
    updates = points((0, 0), (4, 4), (3, 1), (0, 4))
    assert combined(GeometricMedian(), updates) == pytest.approx([2, 2], abs=1e-4)
    assert combined(GeometricMedian(), line(0, 1, 10)) == pytest.approx([1], abs=1e-4)  # on a line, the median


def test_the_geometric_median_of_a_triangle_is_its_fermat_point() -> None:
    # unit vectors at 120 degrees: their sum, the gradient of Σ ‖z − x_k‖ at 0, is 0
    corners = [(math.cos(a), math.sin(a)) for a in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
    assert combined(GeometricMedian(), points(*corners)) == pytest.approx([0, 0], abs=1e-6)


def test_clipping_is_around_the_update_of_the_round_before() -> None:
    # without a round before, v = 0: (3, 4) is 5 long and becomes (0.6, 0.8), (0.5, 0) stays; the mean is (0.55, 0.4)
    rule = CenteredClipping(radius=1.0)
    assert combined(rule, points((3, 4), (0.5, 0))) == pytest.approx([0.55, 0.4])
    # v = (2, 1): v + (0, 10) is 10 away and becomes v + (0, 1), v itself stays: v + (0, 0.5)
    before = points((2, 1))[0]
    assert combined(rule, points((2, 11), (2, 1)), before) == pytest.approx([2, 1.5])
    # with half of the momentum v = (1, 0.5): (1, 10.5) and (1, 0.5)
    assert combined(CenteredClipping(1.0, 0.5), points((1, 10.5), (1, 0.5)), before) == pytest.approx([1, 1])
    # without momentum v = 0 whatever was before
    assert combined(CenteredClipping(1.0, 0.0), points((3, 4), (0.5, 0)), before) == pytest.approx([0.55, 0.4])


def test_the_radius_is_the_median_distance_by_default() -> None:
    # lengths 1, 2, 300: the radius is 2, and (300) becomes 2
    assert combined(CenteredClipping(), line(-1, 2, 300)) == pytest.approx([1])


# -- mixing ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("hostile", [1, 2])
def test_mixing_is_the_mean_of_the_nearest_updates(hostile: int) -> None:
    updates = drawn(5)
    rows = np.stack([vector(update).numpy() for update in updates])
    for row, found in zip(rows, mixed(updates, hostile), strict=True):
        nearest = np.argsort(np.linalg.norm(rows - row, axis=1))[: len(rows) - hostile]
        np.testing.assert_allclose(vector(found).numpy(), rows[nearest].mean(axis=0), atol=1e-12)


def test_mixing_follows_parameters_and_averages_running_statistics_alike() -> None:
    first, second, third = mixed(with_statistics([0.0, 1.0, 3.0], [600.0, -300.0, 0.0]), 1)
    assert [t.item() for t in first.values()] == [t.item() for t in second.values()] == [0.5, 150.0]
    assert [t.item() for t in third.values()] == [2.0, -150.0]


def test_mixing_is_given_by_name() -> None:
    assert instance(AGGREGATORS, "krum(2, mixing=1)", Aggregator) == Krum(2, mixing=1)
    with pytest.raises(BadInput, match=r"median\(2\): 1 values are too many, median takes no values"):
        instance(AGGREGATORS, "median(2)", Aggregator)


def test_inner_product_manipulation_turns_krum_around_and_not_with_mixing() -> None:
    """Honest clients agree in one coordinate and differ in others, so that −μ/2 is nearer to each than they are."""
    honest = torch.cat([torch.ones(7, 1), 3 * torch.eye(7)], dim=1).double()
    hostile = (-0.5 * honest.mean(dim=0)).expand(3, -1)
    updates = [Tree(a=row) for row in torch.cat([hostile, honest])]
    along = {mixing: float(Krum(3, mixing=mixing)(updates, None)["a"][0]) for mixing in (0, 3)}
    # without: the hostile update; with: the mean of the three and of four honest ones, (4 − 3 · 0.5) / 7
    assert along == pytest.approx({0: -0.5, 3: 2.5 / 7})


# -- all rules ----------------------------------------------------------------------------------------
def drawn(seed: int, count: int = HONEST) -> list[Tree]:
    """Updates of length 1 at most, in 5 coordinates."""
    rows = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1)
    return [Tree(a=row[:2], b=row[2:].reshape(3, 1)) for row in rows]


def vector(tree: Tree) -> torch.Tensor:
    return torch.cat([t.flatten() for t in tree.values()])


@MIXING
@pytest.mark.parametrize("name", RULES)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), order=st.permutations(range(HONEST)))
def test_the_order_of_the_clients_does_not_matter(name: str, mixing: int, seed: int, order: list[int]) -> None:
    rule, updates = AGGREGATORS[name](mixing=mixing), drawn(seed)
    found, again = rule(updates, None), rule([updates[i] for i in order], None)
    torch.testing.assert_close(vector(again), vector(found), atol=1e-9, rtol=1e-9)


@MIXING
@pytest.mark.parametrize("name", RULES)
def test_of_updates_that_are_all_the_same_it_is_that_one(name: str, mixing: int) -> None:
    one = drawn(3, 1)[0]
    found = AGGREGATORS[name](mixing=mixing)([one] * HONEST, None)
    torch.testing.assert_close(vector(found), vector(one), atol=1e-12, rtol=1e-12)


@MIXING
@pytest.mark.parametrize("name", RULES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.floats(1e-3, 1e30), place=st.integers(0, HONEST))
def test_one_outlier_of_any_size_moves_it_no_further_than_a_bound(
    name: str, mixing: int, seed: int, size: float, place: int
) -> None:
    """The six honest updates are at most r = 1 long; then the result is at most 3 r long, whatever the seventh is.

    Median and trimmed mean: each coordinate lies between two honest ones, at most √5 r over 5 coordinates. Centered
    clipping: the median distance is an honest one, at most r. Geometric median: 2 (1 − ε)/(1 − 2ε) r = 2.4 r for
    ε = 1/7 (Lopuhaä and Rousseeuw, 1991). Krum: an update that is chosen has a score no larger than an honest one's, at
    most 4 (2 r)², so that it is within 2 r of an honest one. Mixing: an outlier among the six nearest of an honest
    update is at most 3 r long, so that mixed honest updates are at most (5 r + 3 r) / 6 long.
    """
    updates = drawn(seed)
    updates.insert(place, drawn(seed + 1, 1)[0] * size)
    longest = 8 / 6 if mixing else 1
    assert float(vector(AGGREGATORS[name](mixing=mixing)(updates, None)).norm()) <= 3 * longest + 1e-6


def test_the_mean_follows_an_outlier_anywhere() -> None:
    updates = [*drawn(0), drawn(1, 1)[0] * 1e6]
    assert float(vector(tree_mean(updates, [1.0] * len(updates))).norm()) > 1e4


@MIXING
@pytest.mark.parametrize("name", RULES)
def test_numbers_near_the_end_of_float32_stay_finite(name: str, mixing: int) -> None:
    updates = [update.to(torch.float32) for update in drawn(0)]
    updates.append(updates[0].map(lambda t: torch.full_like(t, 3e38)))
    found = vector(AGGREGATORS[name](mixing=mixing)(updates, None))
    assert found.dtype == torch.float32
    assert float(found.norm()) <= 3


def with_statistics(parameters: list[float], statistics: list[float]) -> list[Weights]:
    """Models of one parameter and a running mean."""
    pairs = torch.tensor([parameters, statistics]).double().T
    return [Weights({"w": pair[:1], "mean": pair[1:]}, buffers=["mean"]) for pair in pairs]


@pytest.mark.parametrize("rule", [Krum(1), MultiKrum(1), GeometricMedian(), CenteredClipping()])
def test_running_statistics_do_not_decide_which_updates_are_near(rule: Aggregator) -> None:
    parameters = [0.0, 1.0, 2.5, 4.5, 100.0]
    alike, spread = (with_statistics(parameters, values) for values in ([0.0] * 5, [700.0, -300.0, 50.0, 9.0, 0.0]))
    found = rule.combine(spread, None)
    assert torch.equal(found["w"], rule.combine(alike, None)["w"])
    if type(rule) is Krum:
        assert found["mean"].tolist() == [-300.0]  # those of the chosen client
    if type(rule) is MultiKrum:
        assert found["mean"].tolist() == [(700.0 - 300.0 + 50.0 + 9.0) / 4]
