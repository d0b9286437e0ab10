"""Optimizers as pure functions: parameters, gradients and state in, new parameters and state out.

The update rules are those of `torch.optim`, to rounding; tests hold them to it. `step_in_place` is the same step for
whoever owns the tensors, on a CPU: one pass over each of them instead of four or more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhead.core.tree import Tree


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
            v = list(torch._foreach_add(g, list(state["velocity"].values()), alpha=self.momentum))
            state = Tree(velocity=Tree(zip(params, v, strict=True)))
            g = list(torch._foreach_add(g, v, alpha=self.momentum)) if self.nesterov else v
        w = list(torch._foreach_sub(w, list(torch._foreach_mul(g, lr))))
        return params.replace(dict(zip(params, w, strict=True))), state

    def step_in_place(self, params: Tree, grads: Tree, state: Tree, lr: Tensor) -> None:
        """One step, written over the parameters and the state, which must be laid out alike in memory."""
        torch._fused_sgd_(
            list(params.values()),
            _laid_out(grads, params),
            list(state["velocity"].values()) if self.momentum else [],
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            is_first_step=False,
        )


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

    def step_in_place(self, params: Tree, grads: Tree, state: Tree, lr: Tensor) -> None:
        """One step, written over the parameters and the state, which must be laid out alike in memory."""
        state["step"].add_(1)
        torch._fused_adam_(
            list(params.values()),
            _laid_out(grads, params),
            list(state["mean"].values()),
            list(state["square"].values()),
            [],
            [state["step"]] * len(params),
            lr=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


def owned(params: Tree, state: Tree) -> tuple[Tree, Tree]:
    """Copies of parameters and of an optimizer's state that `step_in_place` may write over."""
    mine = params.clone()

    def copied(entry: Tree) -> Tree:
        return Tree(zip(entry, _laid_out(entry.clone(), mine), strict=True))

    return mine, Tree({n: copied(t) if isinstance(t, Tree) else t.clone() for n, t in state.items()})


def _laid_out(tree: Tree, like: Tree) -> list[Tensor]:
    """The tensors of a tree with the strides of their namesakes: the fused kernels go through memory as it lies."""
    return [
        t if t.stride() == other.stride() else torch.empty_like(other).copy_(t)
        for t, other in zip(tree.values(), like.values(), strict=True)
    ]


def _over(scalar: Tensor, like: Tensor) -> Tensor:
    return scalar.reshape(scalar.shape + (1,) * (like.dim() - scalar.dim()))


Optimizer = SGD | Adam
