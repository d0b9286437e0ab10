"""The kinds of statistics: what each holds and sends, that they add up, and what no features have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedhead as fh
from fedhead.calibration import statistics_check
from fedhead.calibration.statistics import Statistics, from_features, merge
from fedhead.calibration.sums import batch_sums
from fedhead.core.system.errors import BadInput

KINDS = ("full", "diagonal", "pooled", "means")


def sample(seed: int = 0, n: int = 40, d: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=draw, dtype=torch.float64) + 2, torch.randint(0, classes, (n,), generator=draw)


def test_pooled_statistics_hold_the_second_moment_and_the_scatter_within_classes() -> None:
    z, y = sample()
    pooled, full = from_features(z, y, 3, "pooled"), from_features(z, y, 3)
    within = sum((len(own) - 1) * np.cov(own.T) for own in (z[y == c].numpy() for c in range(3)))
    for found in (pooled, full):
        np.testing.assert_allclose(found.second_moment(), (z.T @ z).numpy(), rtol=1e-12)
        np.testing.assert_allclose(found.within(), within, rtol=1e-10, atol=1e-10)
    assert (pooled.kind, pooled.outer.shape) == ("pooled", (10,))
    assert pooled.tree().nbytes == 8 * (3 + 3 * 4 + 10)
    means = from_features(z, y, 3, "means")
    assert (means.kind, means.tree().nbytes) == ("means", 8 * (3 + 3 * 4))
    torch.testing.assert_close(means.mean(), full.mean())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_adds_up_and_is_vectorized(kind: Any) -> None:
    z, y = sample()
    whole = from_features(z, y, 3, kind)
    parts = [from_features(z[k::4], y[k::4], 3, kind) for k in range(4)] + [from_features(z[:0], y[:0], 3, kind)]
    for name, t in merge(parts).tree().items():
        torch.testing.assert_close(t, whole.tree()[name], atol=1e-12, rtol=1e-12)
    weight = (torch.arange(40) % 5 > 0).double().reshape(4, 10)
    z, y = z.reshape(4, 10, 4), y.reshape(4, 10)
    stacked = torch.func.vmap(lambda a, b, w: batch_sums(a, b, w, 3, kind))(z, y, weight)
    for k in range(4):
        kept = weight[k] > 0
        alone = from_features(z[k][kept], y[k][kept], 3, kind).tree()
        for name, t in alone.items():
            torch.testing.assert_close(stacked[name][k], t, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_from_a_file(kind: Any, tmp_path: Path) -> None:
    z, y = sample()
    known = replace(from_features(z, y, 3, kind), extractor="one", transform="two")
    fh.save_statistics(tmp_path / "a.safetensors", known)
    found = fh.load_statistics(tmp_path / "a.safetensors")
    assert (found.kind, found.extractor, found.transform) == (kind, "one", "two")
    assert all(torch.equal(t, known.tree()[name]) for name, t in found.tree().items())
    other = replace(from_features(z, y, 3, kind), extractor="one", transform="three")
    fh.save_statistics(tmp_path / "b.safetensors", other)
    with pytest.raises(BadInput, match=r"b\.safetensors: statistics of inputs that were transformed differently"):
        fh.merge_files([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])


def test_statistics_of_inputs_that_were_transformed_differently_do_not_merge() -> None:
    model = fh.split(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), classifier="1")
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    one, other = (
        fh.statistics_of(model, x, y, transform=fh.Transform((mean,), (1.0,)), kind="pooled") for mean in (0.0, 0.5)
    )
    assert one.extractor == other.extractor
    with pytest.raises(BadInput, match="inputs that were transformed differently"):
        merge([one, other])
    augmented = fh.statistics_of(
        model, x, y, transform=fh.Transform((0.0,), (1.0,), augment=("flip",)), kind="pooled"
    )  # no sample is augmented for statistics
    assert augmented.transform == one.transform


def test_small_classes_are_left_out_of_every_kind() -> None:
    model = fh.split(nn.Sequential(nn.Identity(), nn.Linear(4, 3)), classifier="1").double()
    z, y = sample()
    y[y == 1] = 0
    y[:2] = 1  # two samples of class 1
    for kind in KINDS:
        found = fh.statistics_of(model, z, y, kind=kind, min_class_count=3)  # type: ignore[arg-type]  # one of them
        expected = from_features(z[y != 1], y[y != 1], 3, kind)  # type: ignore[arg-type]  # one of them
        assert int(found.count[1]) == 0
        for name, t in found.tree().items():
            torch.testing.assert_close(t, expected.tree()[name], atol=1e-6, rtol=1e-6)


def pooled(change: str) -> Statistics:
    z, y = sample()
    s = from_features(z, y, 3, "pooled")
    count, total, outer = s.count.clone(), s.sum.clone(), s.outer.clone()
    if change == "variance":
        outer[0] = 1.0  # less than the means alone
    elif change == "indefinite":
        outer[1] = 1e4
    elif change == "ghost":
        count[0] = 0
    elif change == "nobody":
        count[:], total[:] = 0, 0
    return Statistics(count, total, outer)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("variance", "the covariance within classes is not positive semi-definite"),
        ("indefinite", "the covariance within classes is not positive semi-definite"),
        ("ghost", "class 0 has sums but no samples"),
        ("nobody", "there is a second moment but no sample"),
    ],
)
def test_pooled_statistics_that_no_features_have_are_refused(change: str, words: str) -> None:
    statistics_check.check(pooled("nothing"), "client 4")
    with pytest.raises(BadInput, match=f"^client 4: .*{words}"):
        statistics_check.check(pooled(change), "client 4")


def test_what_a_kind_does_not_hold_is_refused_by_name() -> None:
    z, y = sample()
    with pytest.raises(BadInput, match="of kind pooled, and this needs full or diagonal"):
        from_features(z, y, 3, "pooled").covariance()
    with pytest.raises(BadInput, match="of kind diagonal, and this needs pooled or full"):
        from_features(z, y, 3, "diagonal").second_moment()
    with pytest.raises(BadInput, match="of another kind: means here, pooled elsewhere"):
        merge([from_features(z, y, 3, "pooled"), from_features(z, y, 3, "means")])
    assert from_features(z[:, :1], y, 3).second_moment().shape == (1, 1)  # of one dimension, full is diagonal
