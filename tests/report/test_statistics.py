"""Intervals and p-values against scipy and statsmodels, ranks against Demšar's worked example."""

import numpy as np
import pytest
from scipy import stats

from fedhead.report.compare import statistics

DIFFERENCES = [1.2, -0.4, 2.1, 0.9, 1.7, 0.3, 1.1]
# After Demšar (2006), Table 6: C4.5, +m, +cf and +m+cf on 14 data sets; one tie is broken as the printed ranks have it.
DEMSAR = [
    [0.763, 0.768, 0.771, 0.798],
    [0.599, 0.591, 0.590, 0.569],
    [0.954, 0.971, 0.968, 0.967],
    [0.628, 0.661, 0.654, 0.657],
    [0.882, 0.888, 0.886, 0.898],
    [0.936, 0.931, 0.916, 0.931],
    [0.661, 0.668, 0.609, 0.685],
    [0.583, 0.583, 0.563, 0.625],
    [0.775, 0.838, 0.866, 0.875],
    [1.000, 1.000, 1.000, 1.000],
    [0.940, 0.962, 0.965, 0.962],
    [0.619, 0.666, 0.614, 0.669],
    [0.972, 0.981, 0.9751, 0.975],
    [0.957, 0.978, 0.946, 0.970],
]


def test_paired_is_scipys_paired_test() -> None:
    a = np.linspace(80, 90, len(DIFFERENCES))
    b = a - np.asarray(DIFFERENCES)
    found = statistics.paired(DIFFERENCES, level=0.9)
    scipys = stats.ttest_rel(a, b)
    assert found.p_t == pytest.approx(scipys.pvalue, rel=1e-9)
    assert found.interval == pytest.approx(scipys.confidence_interval(0.9), rel=1e-9)
    assert found.p_wilcoxon == pytest.approx(stats.wilcoxon(DIFFERENCES).pvalue)
    assert (found.count, found.mean) == (7, pytest.approx(np.mean(DIFFERENCES)))


def test_interval_and_test_are_those_of_statsmodels() -> None:
    weightstats = pytest.importorskip("statsmodels.stats.weightstats")
    theirs = weightstats.DescrStatsW(DIFFERENCES)
    found = statistics.paired(DIFFERENCES)
    assert found.interval == pytest.approx(theirs.tconfint_mean(0.05))
    assert found.p_t == pytest.approx(theirs.ttest_mean(0)[1])


def test_one_pair_has_no_interval_and_no_test() -> None:
    assert statistics.paired([3.0]) == statistics.Paired(1, 3.0, None, None, None, None)
    assert statistics.interval([3.0]) is None


def test_equal_differences_are_no_evidence_of_the_t_test() -> None:
    equal = statistics.paired([0.5, 0.5, 0.5])
    assert (equal.p_t, equal.interval, equal.deviation) == (None, None, 0.0)
    assert statistics.paired([0.1 + 0.2, 0.3]).p_t is None
    same = statistics.paired([0.0, 0.0])
    assert (same.p_t, same.p_wilcoxon, same.interval) == (1.0, 1.0, (0.0, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_holm_is_statsmodels(seed: int) -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = np.random.default_rng(seed).beta(0.3, 2, size=1 + 4 * seed)
    assert statistics.holm(p.tolist()) == pytest.approx(multitest.multipletests(p, method="holm")[1])


def test_unknown_p_values_do_not_count() -> None:
    assert statistics.holm([None, 0.03, None]) == [None, 0.03, None]
    assert statistics.holm([]) == []


def test_demsars_example() -> None:
    """Section 3.2.2: mean ranks 3.143, 2.000, 2.893, 1.964, critical difference 1.25."""
    found = statistics.rank(["c4.5", "+m", "+cf", "+m+cf"], DEMSAR)
    assert found.mean_ranks == pytest.approx((3.143, 2.0, 2.893, 1.964), abs=5e-4)
    assert found.p_friedman == pytest.approx(stats.friedmanchisquare(*np.transpose(DEMSAR)).pvalue)
    assert found.critical_difference == pytest.approx(1.25, abs=5e-3)
    assert found.groups() == [(3, 1, 2, 0)]


@pytest.mark.parametrize(
    ("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (7, 2.949), (10, 3.164)]
)
def test_critical_values_of_nemenyi(methods: int, q: float) -> None:
    """Demšar, 2006, Table 5 (a)."""
    unit = (methods * (methods + 1) / 6) ** 0.5
    assert statistics.critical_difference(methods, 1) / unit == pytest.approx(q, abs=1.1e-3)


def test_groups_that_differ_do_not_overlap() -> None:
    scores = [[3.0, 2.0, 1.0]] * 30
    assert statistics.rank(["a", "b", "c"], scores).groups() == []
    assert statistics.rank(["a", "b", "c"], scores, better="min").mean_ranks == (3.0, 2.0, 1.0)


def test_tests_need_three_methods_and_something_that_differs() -> None:
    assert statistics.rank(["a", "b"], [[1.0, 2.0], [2.0, 3.0]]).p_friedman is None
    assert statistics.rank(["a", "b", "c"], [[1.0, 1.0, 1.0]] * 3).p_friedman == 1.0
