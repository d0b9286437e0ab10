"""Leave-one-site-out: who is left out is in nothing that the others use; subtraction gives the same heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedhead as fh
from fedhead.calibration.membership import subtract
from fedhead.calibration.statistics import from_features, merge
from fedhead.core.system.errors import BadInput

MODEL = "mlp(hidden=[8])"
HEADS: list[Any] = [fh.NCM(), fh.Ridge(alpha=0.5), fh.LDA(shrinkage=0.2), fh.QDA(shrinkage=0.2)]


def arrays(sites: int = 4) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(sites), 30)
    y = np.arange(len(owner)) % 3
    x = (draw.normal(size=(len(owner), 5)) + y[:, None] + 0.2 * owner[:, None]).astype("float32")
    return x, y, owner


def federation(**more: Any) -> fh.Federation:
    x, y, owner = arrays()
    return fh.Federation.from_arrays(x, y, partition="natural", groups=owner, **more)


def test_the_client_left_out_is_the_test_set_and_in_no_other_part() -> None:
    x, _, owner = arrays()
    for more in ({}, {"client_test": 0.2}, {"test": 0.2}):
        fold = federation(**more).leave_out(2)
        assert fold.test is not None
        assert len(fold) == 3
        assert fold.client_test is None
        assert sorted(map(tuple, fold.test.x.tolist())) == sorted(map(tuple, x[owner == 2].tolist()))
        assert not {tuple(row) for row in fold.train.x.tolist()} & {tuple(row) for row in fold.test.x.tolist()}
    named = fh.Federation.from_clients(
        {name: (x[owner == k], owner[owner == k] * 0 + k % 2) for k, name in enumerate("abc")}
    )
    assert named.leave_out(1).client_names == ("a", "c")


def test_means_and_deviations_are_those_of_the_others() -> None:
    x, y, owner = arrays()
    x[(owner == 0) & (np.arange(len(x)) % 3 == 0), 1] = np.nan
    x[(owner == 1) & (np.arange(len(x)) % 4 == 0), 3] = np.nan
    made = {"partition": "natural", "missing": "mean", "normalize": "standard"}
    whole = fh.Federation.from_arrays(x, y, groups=owner, **made)
    for k in (0, 1, 3):
        fold, rest = whole.leave_out(k), owner != k
        alone = fh.Federation.from_arrays(x[rest], y[rest], groups=owner[rest], **made)
        assert fold.transform == alone.transform
        assert fold.missing == alone.missing
        assert torch.equal(fold.train.x, alone.train.x)  # type: ignore[arg-type]  # one tensor
        assert fold.test is not None
        assert fold.test.x.shape[1] == fold.train.x.shape[1]  # type: ignore[union-attr]  # one tensor


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31), sites=st.integers(2, 6), stage=st.sampled_from(HEADS))
def test_a_subtraction_gives_the_head_that_never_saw_the_client(seed: int, sites: int, stage: Any) -> None:
    draw = torch.Generator().manual_seed(seed)
    parts = []
    for k in range(sites):
        y = torch.cat([torch.arange(3).repeat(2), torch.randint(0, 3, (10,), generator=draw)])
        z = torch.randn(len(y), 4, generator=draw, dtype=torch.float64) + y[:, None] + k
        parts.append(from_features(z, y, 3, stage.kind))
    total, left = merge(parts), seed % sites
    found = stage.fit(subtract(total, parts[left]))
    expected = stage.fit(merge(part for k, part in enumerate(parts) if k != left))
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, rtol=1e-9, atol=1e-9)


def test_heads_without_rounds_are_those_of_one_run_per_client() -> None:
    whole = federation()
    found = fh.leave_one_out(whole, MODEL, rounds=0, stages=HEADS)
    assert list(found.index) == list("0123")
    for k in range(4):
        alone = fh.run(whole.leave_out(k), MODEL, rounds=0, stages=HEADS)
        assert {name: stage.accuracy for name, stage in alone.stages.items()} == pytest.approx(
            {stage.name: found[stage.name].iloc[k] for stage in HEADS}
        )
    assert list(found.columns) == ["samples", "ncm", "ridge", "lda", "qda"]


@pytest.mark.slow
def test_runs_with_rounds_leave_out_each_client(tmp_path: Path) -> None:
    found = fh.leave_one_out(federation(normalize="standard"), MODEL, "fedprox", rounds=1, stages=["lda"], out=tmp_path)
    assert found["samples"].tolist() == [30] * 4
    assert list(found.columns) == ["samples", "rounds", "lda"]
    assert (
        fh.load(tmp_path / "site3", federation=federation(normalize="standard").leave_out(3)).accuracy
        == found["rounds"].iloc[3]
    )


def test_what_can_not_be_left_out_is_refused() -> None:
    with pytest.raises(BadInput, match="there is no client 4 to leave out"):
        federation().leave_out(4)
    alone = fh.Federation.from_arrays(*arrays()[:2], partition="iid", clients=1)
    with pytest.raises(BadInput, match="no other client has samples to train on"):
        alone.leave_out(0)
    with pytest.raises(BadInput, match="assign"):
        fh.leave_one_out(federation(), MODEL, assign=[0, 0, 0, 0])
