"""Calibration of a classifier: virtual features from class statistics, and the head trained anew on features."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedhead.core import batching, random
from fedhead.core.errors import BadInput, outside
from fedhead.core.losses import cross_entropy
from fedhead.core.optimizers import Optimizer
from fedhead.core.tree import Tree
from fedhead.models.split_model import SplitModel, classify


def refuse_head(model: SplitModel, free: bool, who: str) -> None:
    """Refuse a model whose head is fixed by design or not linear in the features, unless it is to be freed."""
    if free:
        return
    kind = type(model.classifier).__name__
    held = sorted(name for name in model.fixed if name.startswith("classifier."))
    if held:
        raise BadInput(
            f"{who}: the head {kind} holds {held[0]!r} fixed, so there is nothing to calibrate; "
            f"use a linear head (model.head=linear), or free=true to train it after all"
        )
    if not linear(model):
        raise BadInput(
            f"{who}: the head {kind} is not linear in the features, for which calibration is made; "
            f"use a linear head (model.head=linear), or free=true to train it all the same"
        )


def check_sgd(key: str, lr: float, momentum: float, weight_decay: float) -> None:
    """Refuse settings by which the head can't be trained; `key` names whose they are."""
    if not lr > 0:
        raise outside(f"{key}.lr", lr, "over 0")
    if not 0 <= momentum < 1:
        raise outside(f"{key}.momentum", momentum, "at least 0 and under 1")
    if not weight_decay >= 0:
        raise outside(f"{key}.weight_decay", weight_decay, "at least 0")


def linear(model: SplitModel) -> bool:
    """Say whether the classifier is linear in z (with or without a bias).

    `nn.Linear` itself is, and the built-in heads declare it in their class as `linear_in_features`. A class that
    does neither is probed.
    """
    kind = type(model.classifier)
    if kind is nn.Linear:
        return True
    declared = vars(kind).get("linear_in_features")  # of this very class: a subclass may compute something else
    return _probe(model) if declared is None else bool(declared)


@torch.no_grad()
def _probe(model: SplitModel) -> bool:
    """Test f(a) + f(b) = f(a + b) + f(0) in float64, on a copy on the CPU: neither TF32 nor bfloat16 rounds there.

    The difference is judged by the size of the outputs; it leaves space for a head that computes in float32 inside.
    """
    head = copy.deepcopy(model.classifier).to("cpu", torch.float64).eval()
    a, b = torch.randn(2, model.features, generator=random.generator(random.key("linear")), dtype=torch.float64)
    f = head(torch.stack([a, b, a + b, torch.zeros_like(a)])).double()
    return float((f[0] + f[1] - f[2] - f[3]).abs().max()) <= 1e-5 * float(f.abs().max())


def retrain(
    model: SplitModel,
    head: Mapping[str, Tensor],
    z: Tensor,
    y: Tensor,
    optimizer: Optimizer,
    epochs: int,
    batch_size: int,
    key: int,
) -> Tree:
    """Train a head from where it stands, with cross entropy on features z and labels y.

    `head` holds the classifier's entries under their full names; so does what comes back.
    """
    first = next(iter(head.values()))
    # the steps of a small head are too short for a GPU: launching them takes longer than a CPU computes
    small = sum(t.numel() for t in head.values()) < 50_000 and not list(model.classifier.buffers())
    device = torch.device("cpu") if small else first.device
    z, y = z.to(device, first.dtype), y.to(device)
    params = Tree({name: t.detach().to(device) for name, t in head.items()})
    state = optimizer.init(params)
    schedule = batching.draw_batches(len(y), batch_size, epochs, drop_last=False, key=key)
    places = torch.from_numpy(schedule.positions).to(z.device)
    weights = torch.from_numpy(schedule.weight.copy()).to(z.device)
    for index, weight in zip(places, weights, strict=True):
        leaves = params.map(lambda t: t.detach().requires_grad_())
        with torch.enable_grad():
            loss = cross_entropy(classify(model, leaves, z[index]), y[index], weight)
            grads = torch.autograd.grad(loss, list(leaves.values()))
        with torch.no_grad():
            params, state = optimizer.step(params, Tree(zip(params, grads, strict=True)), state, optimizer.lr)
    if not params.finite():
        raise BadInput(f"calibration left the finite numbers at learning rate {optimizer.lr:g}: use a smaller one")
    return params.to(first.device)
