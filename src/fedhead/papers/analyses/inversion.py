"""Feature inversion: reconstruction of inputs from features or means of features (CCVR, appendix C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from fedhead.core.training import random
from fedhead.core.training.optimizers import Adam
from fedhead.core.tree.tree import Tree
from fedhead.models.split_model import SplitModel


def invert(
    model: SplitModel,
    w: Tree,
    target: Tensor,
    shape: Sequence[int],
    *,
    steps: int = 500,
    lr: float = 0.05,
    smooth: float = 1e-3,
    seed: int = 0,
) -> Tensor:
    """Find inputs whose features are close to given ones, by gradient descent: argmin ‖f(x) − z‖² + λ·TV(x).

    Args:
        model: The model.
        w: Its weights.
        target: Features z, [n, d].
        shape: Shape of one input.
        steps: Number of gradient steps.
        lr: Learning rate.
        smooth: λ, the weight of the total variation.
        seed: Seed of the initial noise.

    Returns:
        Inputs, [n, *shape].
    """
    noise = torch.randn(len(target), *shape, generator=random.generator(random.key(seed, "inversion")))
    x = Tree(x=(0.1 * noise).to(target.device, target.dtype))
    optimizer = Adam(lr)
    state = optimizer.init(x)
    model.eval()
    for _ in range(steps):
        leaf = x["x"].detach().requires_grad_()
        with torch.enable_grad():
            distance = (functional_call(model, dict(w), (leaf,)).z - target).square().sum(1)
            loss = (distance / target.square().sum(1).clamp_min(1e-12)).sum() + smooth * variation(leaf)
            (grad,) = torch.autograd.grad(loss, leaf)
        with torch.no_grad():
            x, state = optimizer.step(x, Tree(x=grad), state, optimizer.lr)
    return x["x"]  # type: ignore[no-any-return]  # a tree's entries are untyped


def variation(x: Tensor) -> Tensor:
    """Return the total variation of images [n, c, h, w]; 0 for other inputs."""
    if x.dim() != 4:
        return x.new_zeros(())
    return x.diff(dim=2).abs().sum() + x.diff(dim=3).abs().sum()


@dataclass(frozen=True)
class Inversions:
    """Input and its reconstructions from its feature and from means of several features of its class."""

    original: Tensor  # [c, h, w]
    numbers: Sequence[int]  # number of features averaged in each mean; 1: a single feature
    reconstructions: Tensor  # [len(numbers), c, h, w]

    def errors(self) -> list[float]:
        """Return the squared errors relative to that of a constant image: 0 is identical, 1 no better than constant."""
        blank = (self.original - self.original.mean()).square().sum().clamp_min(1e-12)
        return [float((x - self.original).square().sum() / blank) for x in self.reconstructions]


def inversions(
    model: SplitModel, w: Tree, inputs: Tensor, numbers: Sequence[int] = (1, 10, 50), steps: int = 500, seed: int = 0
) -> Inversions:
    """Reconstruct the first input from its feature, and from the means of the first n features of its class."""
    with torch.no_grad():
        z = functional_call(model.eval(), dict(w), (inputs,)).z
    counts = [n for n in numbers if n <= len(inputs)]
    target = torch.stack([z[:n].mean(0) for n in counts])
    reconstructions = invert(model, w, target, inputs.shape[1:], steps=steps, seed=seed)
    return Inversions(inputs[0].detach(), counts, reconstructions)
