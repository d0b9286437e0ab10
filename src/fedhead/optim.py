"""Optimisers as pure functions: parameters, gradients and state in, new parameters and state out.

The update rules are those of `torch.optim`, to rounding; tests hold them to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhead.tree import Tree


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum and L2 weight decay, as `torch.optim.SGD`."""

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def init(self, params: Tree) -> Tree:
        """The state before the first step."""
        return Tree(velocity=params.zeros()) if self.momentum else Tree()

    def step(self, params: Tree, grads: Tree, state: Tree, lr: Tensor | float) -> tuple[Tree, Tree]:
        """One step at the learning rate `lr`."""
        g = list(grads.values())
        w = list(params.values())
        if self.weight_decay:
            g = list(torch._foreach_add(g, w, alpha=self.weight_decay))
        if self.momentum:
            v = list(torch._foreach_mul(list(state["velocity"].values()), self.momentum))
            torch._foreach_add_(v, g)
            state = Tree(velocity=Tree(zip(params, v, strict=True)))
            g = list(torch._foreach_add(g, v, alpha=self.momentum)) if self.nesterov else v
        w = list(torch._foreach_sub(w, list(torch._foreach_mul(g, lr))))
        return params.replace(dict(zip(params, w, strict=True))), state


@dataclass(frozen=True)
class Adam:
    """Adam with L2 weight decay, as `torch.optim.Adam`."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def init(self, params: Tree) -> Tree:
        """The state before the first step."""
        first = next(iter(params.values()))
        return Tree(step=first.new_zeros(()), mean=params.zeros(), square=params.zeros())

    def step(self, params: Tree, grads: Tree, state: Tree, lr: Tensor | float) -> tuple[Tree, Tree]:
        """One step at the learning rate `lr`."""
        b1, b2 = self.betas
        g, w = list(grads.values()), list(params.values())
        if self.weight_decay:
            g = list(torch._foreach_add(g, w, alpha=self.weight_decay))
        t = state["step"] + 1
        m = list(torch._foreach_mul(list(state["mean"].values()), b1))
        torch._foreach_add_(m, g, alpha=1 - b1)
        s = list(torch._foreach_mul(list(state["square"].values()), b2))
        torch._foreach_addcmul_(s, g, g, value=1 - b2)
        # every step counter is a row of its own in a stack: give it the trailing axes of what it divides
        size = lr / (1 - torch.pow(b1, t))
        root = torch.sqrt(1 - torch.pow(b2, t))
        w = [
            p - _over(size, p) * mi / (torch.sqrt(si) / _over(root, p) + self.eps)
            for p, mi, si in zip(w, m, s, strict=True)
        ]
        names = list(params)
        state = Tree(step=t, mean=Tree(zip(names, m, strict=True)), square=Tree(zip(names, s, strict=True)))
        return params.replace(dict(zip(names, w, strict=True))), state


def _over(scalar: Tensor, like: Tensor) -> Tensor:
    return scalar.reshape(scalar.shape + (1,) * (like.dim() - scalar.dim()))


Optimizer = SGD | Adam
