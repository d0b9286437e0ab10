"""Check of whether a classifier can be calibrated."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.models.split_model import SplitModel


def check_head(model: SplitModel, any_head: bool, who: str) -> None:
    """Check that a model's head can be calibrated: it must be trainable and linear in the features.

    Args:
        model: Model to check.
        any_head: Whether to allow heads that are fixed or not linear.
        who: Name of the caller, for error messages.

    Raises:
        BadInput: If it can't, with the reason and the fix.
    """
    if frozen := sorted(name for name in model.frozen if name.startswith("classifier.")):
        raise BadInput(
            f"{who}: {frozen[0]!r} is frozen, so there is nothing to calibrate; leave the classifier trainable"
        )
    if any_head:
        return
    kind = type(model.classifier).__name__
    fixed = sorted(name for name in model.fixed if name.startswith("classifier."))
    if fixed:
        raise BadInput(
            f"{who}: the head {kind} keeps {fixed[0]!r} fixed, so there is nothing to calibrate; "
            f"use a linear head (model.head=linear), or any_head=true to train it after all"
        )
    if not linear(model):
        raise BadInput(
            f"{who}: the head {kind} is not linear in the features, as calibration assumes; "
            f"use a linear head (model.head=linear), or any_head=true to train it all the same"
        )


@torch.no_grad()
def linear(model: SplitModel) -> bool:
    """Return whether the classifier is linear in z (with or without a bias).

    For other classes than `nn.Linear`, f(a) + f(b) = f(a + b) + f(0) is tested in float64 on a CPU copy, free of TF32
    and bfloat16 rounding. The tolerance is relative to the outputs and allows for heads that compute in float32
    internally.
    """
    if type(model.classifier) is nn.Linear:
        return True
    head = copy.deepcopy(model.classifier).to("cpu", torch.float64).eval()
    a, b = torch.randn(2, model.features, generator=random.generator(random.key("linear")), dtype=torch.float64)
    f = head(torch.stack([a, b, a + b, torch.zeros_like(a)])).double()
    return float((f[0] + f[1] - f[2] - f[3]).abs().max()) <= 1e-5 * float(f.abs().max())
