"""Heads in closed form have the accuracy of float64 in every precision, wherever the features lie."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch.utils._python_dispatch import TorchDispatchMode

import fedhead as fh

PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}
STAGES = ["ncm", "ridge", "lda", "qda", "personal_lda", "personal_ridge"]
UNSHIFTED = ["ncm(metric=cosine)", "ridge(intercept=false)", "ridge(normalize=true)", "fedcof"]
PLACES = [
    pytest.param(offset, scale, marks=[] if (offset, scale) in ((5, 1.0), (1000, 1e-3)) else pytest.mark.slow)
    for offset in (0, 5, 100, 1000)
    for scale in (1e-3, 1.0, 1e3)
]
POINTS = 0.3  # largest difference of accuracies


class RoundedToTF32(TorchDispatchMode):
    """Matrix products of float32 round their factors to TF32's ten bits, as tensor cores do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in PRODUCTS:
            args = [to_tf32(t) if isinstance(t, torch.Tensor) and t.dtype == torch.float32 else t for t in args]
        return func(*args, **(kwargs or {}))


def to_tf32(t: torch.Tensor) -> torch.Tensor:
    bits = t.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


@cache
def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Digits, some of whose features are dead, with a constant feature and two that depend on others."""
    x, y = load_digits(return_X_y=True)
    x = (x - 8) / 6
    return np.column_stack([x, np.ones(len(x)), x[:, 20] + x[:, 21], x[:, 30] - 2 * x[:, 42]]), y


def features(offset: float, scale: float) -> NDArray[np.float32]:
    return (offset + scale * digits()[0]).astype(np.float32)


def trained(x: NDArray[np.float32], precision: str, stages: list[str], executor: str = "stack") -> fh.Result:
    """Stages without rounds on these features."""
    y = digits()[1]
    federation = fh.Federation.from_arrays(
        x[:1200], y[:1200], "dirichlet(0.5)", clients=4, seed=0, test=(x[1200:], y[1200:]), client_test=0.3
    )
    given = {"rounds": 0, "device": "cpu", "executor": executor, "stages": stages}
    if precision == "tf32":
        with RoundedToTF32():
            return fh.run(federation, "mlp(hidden=[])", **given)
    return fh.run(federation, "mlp(hidden=[])", **given, precision=precision)


def accuracies(x: NDArray[np.float32], precision: str, stages: list[str]) -> dict[str, Any]:
    """The accuracies of the global model and of the clients' models after each stage."""
    stages_of_run = trained(x, precision, stages).stages
    return {name: (found.accuracy, found.personal) for name, found in stages_of_run.items()}


@cache
def centred(offset: float, scale: float) -> dict[str, Any]:
    """The accuracies in fp32 on the same features minus their mean, of size 1."""
    x = features(offset, scale).astype(np.float64)
    return accuracies(((x - x.mean(0)) / scale).astype(np.float32), "fp32", STAGES)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize(("offset", "scale"), PLACES)
def test_heads_do_not_depend_on_offset_scale_and_precision(offset: float, scale: float, precision: str) -> None:
    found, expected = accuracies(features(offset, scale), precision, STAGES), centred(offset, scale)
    differences = {name: np.subtract(found[name], expected[name]).tolist() for name in found}
    assert np.abs(list(differences.values())).max() <= POINTS, differences


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize(("offset", "scale"), [(5, 1.0), (1000, 1.0), (1000, 1e-3)])
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


@pytest.mark.parametrize("stage", ["ncm", "lda", "ridge", "qda", "personal_lda"])
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
