"""Class statistics: merged ones equal pooled ones, whatever the split, and what no features have is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedhead.calibration import low_rank, statistics, statistics_check
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.sums import class_sums
from fedhead.core.system.errors import BadInput


def sample(seed: int, n: int, d: int, classes: int, mean: float = 0.0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=draw, dtype=torch.float64) * 3 + mean
    return z, torch.randint(0, classes, (n,), generator=draw)


def equation_4(parts: list[tuple[Tensor, Tensor]], c: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """The paper's Eq. 2 to 4 from local means and local unbiased covariances, in numpy."""
    own = [z[y == c].numpy() for z, y in parts if int((y == c).sum())]
    total = sum(len(z) for z in own)
    if total == 0:
        return np.zeros(d), np.zeros((d, d))
    mu = sum(len(z) / total * z.mean(0) for z in own)
    if total == 1:
        return mu, np.zeros((d, d))
    local = [np.cov(z.T).reshape(d, d) if len(z) > 1 else np.zeros((d, d)) for z in own]
    sigma = sum((len(z) - 1) / (total - 1) * s for z, s in zip(own, local, strict=True))
    sigma = sigma + sum(len(z) / (total - 1) * np.outer(z.mean(0), z.mean(0)) for z in own)
    return mu, sigma - total / (total - 1) * np.outer(mu, mu)


def near(found: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 60),
    d=st.integers(1, 6),
    classes=st.integers(1, 5),
    clients=st.integers(1, 6),
    mean=st.sampled_from([0.0, 5.0]),
)
def test_merged_equal_pooled_equal_the_papers_equations(
    seed: int, n: int, d: int, classes: int, clients: int, mean: float
) -> None:
    z, y = sample(seed, n, d, classes, mean)
    owner = torch.randint(0, clients, (n,), generator=torch.Generator().manual_seed(seed + 1))
    parts = [(z[owner == k], y[owner == k]) for k in range(clients)]  # some clients, some classes stay empty
    merged = statistics.merge(statistics.from_features(*part, classes + 1) for part in parts)  # one class is absent
    backwards = statistics.merge(statistics.from_features(*part, classes + 1) for part in reversed(parts))
    pooled = statistics.from_features(z, y, classes + 1)
    assert torch.equal(merged.count, pooled.count)
    for c in range(classes + 1):
        mu, sigma = equation_4(parts, c, d)
        own = z[y == c].numpy()
        direct = np.cov(own.T).reshape(d, d) if len(own) > 1 else np.zeros((d, d))
        for found in (merged, backwards, pooled):
            near(found.mean()[c], mu)
            near(found.covariance()[c].reshape(d, d), sigma)  # one dimension's covariance is its own diagonal
            near(found.covariance()[c].reshape(d, d), direct)
            near(found.diagonal().covariance()[c], np.diag(direct))


def test_single_samples_have_no_covariance_and_absent_classes_nothing() -> None:
    z = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    one = statistics.from_features(z[:1], torch.tensor([1]), 3) + statistics.from_features(z[1:], torch.tensor([2]), 3)
    assert one.count.tolist() == [0, 1, 1]
    assert one.mean().tolist() == [[0, 0], [1, 2], [3, 4]]
    assert not one.covariance().any()


def test_the_operator_is_the_same_over_clients_and_leaves_padding_out() -> None:
    z, y = sample(0, 24, 3, 4)
    weight = (torch.arange(24) % 5 > 0).double()
    stacked = torch.func.vmap(lambda a, b, w: class_sums(a, b, w, 4, False))(
        z.reshape(4, 6, 3), y.reshape(4, 6), weight.reshape(4, 6)
    )
    kept = weight > 0
    whole = class_sums(z[kept], y[kept], torch.ones(int(kept.sum())), 4, False)
    for rows, total in zip(stacked, whole, strict=True):
        torch.testing.assert_close(rows.sum(0), total, atol=1e-12, rtol=0)


def test_the_operator_takes_clients_along_any_axis_and_what_they_share() -> None:
    z, y = sample(0, 24, 3, 4)
    z, weight = z.reshape(4, 6, 3), torch.ones(6)
    expected = [class_sums(own, y[:6], weight, 4, True) for own in z]
    stacked = torch.func.vmap(lambda a: class_sums(a, y[:6], weight, 4, True), in_dims=1)(z.movedim(0, 1))
    for found, *each in zip(stacked, *expected, strict=True):
        torch.testing.assert_close(found, torch.stack(each))


def test_rounding_gives_no_negative_variance() -> None:
    z = torch.full((7, 1), 1e8 + 0.1, dtype=torch.float64)
    one = statistics.from_features(z, torch.zeros(7, dtype=torch.int64), 1, kind="diagonal")
    for shift in (0.9999999, 1.0, 1.0000001):  # the sum of squares as it may have been rounded on the way
        assert float(Statistics(one.count, one.sum, one.outer * shift).covariance().min()) >= 0


def test_merging_leaves_the_parts_as_they_are() -> None:
    z, y = sample(4, 20, 3, 2)
    parts = [statistics.from_features(z[:10], y[:10], 2), statistics.from_features(z[10:], y[10:], 2)]
    before = [part.tree().clone() for part in parts]
    together = statistics.merge(parts)
    for part, old in zip(parts, before, strict=True):
        for name, value in part.tree().items():
            assert torch.equal(value, old[name])
    for name, value in (parts[0] + parts[1]).tree().items():
        torch.testing.assert_close(value, together.tree()[name])


def test_low_rank_is_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = sample(3, 60, 4, 5)
    exact = statistics.from_features(z, y, 5)
    sent = low_rank.to_low_rank(exact, 2)
    found = low_rank.from_tree(sent)
    monkeypatch.setattr(low_rank, "classes_at_once", lambda features: 2)
    again = low_rank.to_low_rank(exact, 2)
    for name, tensor in sent.items():
        torch.testing.assert_close(again[name], tensor, atol=1e-12, rtol=0)
    torch.testing.assert_close(low_rank.from_tree(sent).outer, found.outer, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rank", [0, 2, 5])
def test_low_rank_keeps_the_diagonal_and_becomes_exact(rank: int) -> None:
    z, y = sample(3, 40, 5, 2)
    count, total, outer = class_sums(z, y, torch.ones(40), 2, False)
    sent = low_rank.low_rank_sums(count, total, outer, rank)
    found, exact = low_rank.from_tree(sent), statistics.from_features(z, y, 2)
    torch.testing.assert_close(found.mean(), exact.mean())
    off = found.covariance() - exact.covariance()
    assert off.diagonal(dim1=1, dim2=2).abs().max() < 1e-10
    if rank == 5:
        assert off.abs().max() < 1e-10
    if rank == 0:
        inside = found.covariance()
        assert (inside - torch.diag_embed(inside.diagonal(dim1=1, dim2=2))).abs().max() < 1e-10
    assert sent.nbytes == 8 * (2 + 2 * 5 + 2 * 5 + 2 * rank * 5)


def test_what_each_form_sends() -> None:
    z, y = sample(1, 30, 8, 3)
    full, diagonal = statistics.from_features(z, y, 3), statistics.from_features(z, y, 3, kind="diagonal")
    assert full.tree().nbytes == 8 * 3 * (1 + 8 + 36)  # the triangle alone: half of what d x d would take
    assert diagonal.tree().nbytes == 8 * 3 * (1 + 8 + 8)
    assert (full.kind, diagonal.kind) == ("full", "diagonal")


def broken(name: str) -> Statistics:
    z, y = sample(2, 30, 4, 3)
    s = statistics.from_features(z, y, 3)
    count, total, outer = s.count.clone(), s.sum.clone(), s.outer.clone()
    if name == "nan":
        total[1, 2] = float("nan")
    elif name == "infinite":
        outer[0, 0] = float("inf")
    elif name == "negative":
        count[2] = -3
    elif name == "fraction":
        count[2] = 2.5
    elif name == "ghost":
        count[0] = 0
    elif name == "ghost squares":
        count[0], total[0] = 0, 0
    elif name == "variance":
        outer[1, 0] = -1e3
    elif name == "indefinite":
        outer[1, 1] = 1e5  # an off-diagonal entry far beyond what the diagonal allows
    return Statistics(count, total, outer)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nan", "'sum' is not finite"),
        ("infinite", "'outer' is not finite"),
        ("negative", "-3 samples of class 2"),
        ("fraction", "2.5 samples of class 2"),
        ("ghost", "class 0 has sums but no samples"),
        ("ghost squares", "class 0 has sums but no samples"),
        ("variance", "class 1 is not positive semi-definite"),
        ("indefinite", "class 1 is not positive semi-definite"),
    ],
)
def test_what_no_features_have_is_refused_by_name(name: str, words: str) -> None:
    with pytest.raises(BadInput, match=f"^client 4: .*{words}"):
        statistics_check.check(broken(name), "client 4")


def test_the_costly_check_is_made_only_when_asked_for_and_is_strict() -> None:
    sound = broken("indefinite")
    assert statistics_check.check(sound, "client 4", full=False) is sound  # its diagonals are
    with pytest.raises(BadInput, match="covariance of class 1"):
        statistics_check.check(broken("variance"), "client 4", full=False)
    count, total = torch.tensor([5.0]), torch.zeros(1, 2)
    for excess, fits in ((0.0, True), (1e-12, True), (1e-5, False)):  # an eigenvalue below 0 by so much of the largest
        outer = torch.tensor([[1.0, 1.0 + excess, 1.0]]).double()
        if fits:
            statistics_check.check(Statistics(count, total, outer), "client 4")
        else:
            with pytest.raises(BadInput, match="positive semi-definite"):
                statistics_check.check(Statistics(count, total, outer), "client 4")


def test_sound_statistics_pass_also_where_they_are_singular() -> None:
    z, y = sample(5, 6, 20, 2)  # fewer samples than dimensions
    statistics_check.check(statistics.from_features(z + 100, y, 3), "client 0")
    statistics_check.check(statistics.from_features(z, y, 3, kind="diagonal"), "client 0")


def test_statistics_of_other_models_do_not_merge() -> None:
    z, y = sample(2, 30, 4, 3)
    with pytest.raises(BadInput, match="different model: features: 3 here, 4 elsewhere"):
        statistics.merge([statistics.from_features(z, y, 3), statistics.from_features(z[:, :3], y, 3)])
    with pytest.raises(BadInput, match="different model: classes"):
        statistics.merge([statistics.from_features(z, y, 3), statistics.from_features(z, y, 4)])
    with pytest.raises(BadInput, match="of another kind: "):
        statistics.merge([statistics.from_features(z, y, 3), statistics.from_features(z, y, 3, kind="diagonal")])
    with pytest.raises(BadInput, match="at least one client"):
        statistics.merge([])


def test_one_known_model_is_enough_to_refuse_another() -> None:
    z, y = sample(2, 30, 4, 3)
    unknown = statistics.from_features(z, y, 3)
    one, other = replace(unknown, extractor="one"), replace(unknown, extractor="other")
    for found in (unknown + one, one + unknown, statistics.merge([unknown, one]), statistics.merge([one, unknown])):
        assert found.extractor == found.diagonal().extractor == "one"
        with pytest.raises(BadInput, match="extractors' weights differ"):
            found + other
    with pytest.raises(BadInput, match="extractors' weights differ"):
        statistics.merge([unknown, one, other])
    with pytest.raises(BadInput, match="of another kind: "):
        unknown + unknown.diagonal()


@pytest.mark.slow
def test_class_sums_do_not_import_torchs_compiler() -> None:
    code = """if True:
        import sys, torch
        from fedhead.calibration.sums import class_sums
        z, y, weight = torch.randn(2, 6, 3), torch.arange(12).reshape(2, 6) % 2, torch.ones(2, 6)
        class_sums(z[0], y[0], weight[0], 2, False)
        torch.func.vmap(lambda *given: class_sums(*given, 2, False))(z, y, weight)
        print("torch._dynamo" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"  # it takes seconds, which a head's time would count
