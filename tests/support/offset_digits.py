"""Digits at some distance from 0, and the accuracies of closed-form heads on them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch.utils._python_dispatch import TorchDispatchMode

import fedhead as fh

PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}
STAGES = ["ncm", "ridge", "lda", "qda", "personal_lda", "personal_ridge"]


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


def trained(x: NDArray[np.float32], precision: str, stages: list[str], **settings: Any) -> fh.Result:
    """Stages without rounds on these features."""
    y = digits()[1]
    federation = fh.Federation.from_arrays(
        x[:1200], y[:1200], "dirichlet(0.5)", clients=4, seed=0, test=(x[1200:], y[1200:]), client_test=0.3
    )
    given = {"rounds": 0, "device": "cpu", "executor": "stack", "stages": stages, **settings}
    if precision == "tf32" and given["device"] == "cpu":
        with RoundedToTF32():
            return fh.run(federation, "mlp(hidden=[])", **given)
    return fh.run(federation, "mlp(hidden=[])", **given, precision=precision)


def accuracies(x: NDArray[np.float32], precision: str, device: str = "cpu") -> dict[str, Any]:
    """The accuracies of the global model and of the clients' models after each stage."""
    stages = trained(x, precision, STAGES, device=device).stages
    return {name: (found.accuracy, found.personal) for name, found in stages.items()}


@cache
def centred(offset: float, scale: float) -> dict[str, Any]:
    """The accuracies in fp32 on the same features minus their mean, of size 1."""
    x = features(offset, scale).astype(np.float64)
    return accuracies(((x - x.mean(0)) / scale).astype(np.float32), "fp32")


def largest_difference(offset: float, scale: float, precision: str, device: str = "cpu") -> float:
    """Of the accuracies on features and on the same features when centred, in points."""
    found, expected = accuracies(features(offset, scale), precision, device), centred(offset, scale)
    return float(np.abs([np.subtract(found[name], expected[name]) for name in found]).max())
