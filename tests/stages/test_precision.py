"""Heads in closed form have the accuracy of float64 in every precision, wherever the features lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from offset_digits import RoundedToTF32, digits, features, largest_difference, trained
from tiers import quick

UNSHIFTED = ["ncm(metric=cosine)", "ridge(intercept=false)", "ridge(normalize=true)", "fedcof"]
PLACES = [
    pytest.param(offset, scale, marks=[] if (offset, scale) == (1000, 1e-3) else pytest.mark.slow)
    for offset in (0, 5, 100, 1000)
    for scale in (1e-3, 1.0, 1e3)
]
POINTS = 0.3  # largest difference of accuracies


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize(("offset", "scale"), PLACES)
def test_heads_do_not_depend_on_offset_scale_and_precision(offset: float, scale: float, precision: str) -> None:
    assert largest_difference(offset, scale, precision) <= POINTS


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize(("offset", "scale"), [(1000, 1.0), pytest.param(1000, 1e-3, marks=pytest.mark.slow)])
def test_heads_without_intercept_score_in_float64(offset: float, scale: float, precision: str) -> None:
    """Their accuracy depends on the offset, and not on the precision."""
    for stage in UNSHIFTED:
        result = trained(features(offset, scale), precision, [stage])
        head = next(iter(result.stages.values()))
        (w,) = head.server["calibrated"].values()
        x, y = features(offset, scale)[1200:].astype(np.longdouble), digits()[1][1200:]
        scores = x @ w["classifier.weight"].numpy().astype(np.longdouble).T + w["classifier.bias"].numpy()
        expected = 100 * float((scores.argmax(1) == y).mean())
        assert head.accuracy == pytest.approx(expected, abs=POINTS), stage


@pytest.mark.parametrize("stage", quick(["lda", "personal_lda", "ncm", "ridge", "qda"], "personal_lda"))
def test_modules_files_and_predictions_have_the_same_scores(stage: str, tmp_path: Path) -> None:
    x = features(1000, 1.0)
    result = trained(x, "bf16", [stage], executor="loop")
    client = 1 if stage == "personal_lda" else None
    scores = torch.from_numpy(result.scores(x[1200:], client=client, stage=stage))
    for inputs in (torch.from_numpy(x[1200:]), torch.from_numpy(x[1200:1201])):
        module = result.module(client=client, stage=stage)
        with torch.autocast("cpu", torch.bfloat16), RoundedToTF32(), torch.no_grad():
            found = module(inputs)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, scores[: len(inputs)], rtol=1e-6, atol=1e-6 * float(scores.abs().max()))
    result.export(tmp_path / "model.onnx", client=client, stage=stage)  # compares the file's scores with the run's
