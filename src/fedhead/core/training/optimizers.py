"""Optimizers as pure functions: parameters, gradients and state in, new parameters and state out.

The update rules equal those of `torch.optim` up to rounding, as the tests verify. `step_in_place` is the same step in
place: one pass over each tensor instead of four or more, and on a GPU one kernel for many float32 tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedhead.core.components.parameters import Checked
from fedhead.core.components.ranges import Above, AtLeast, Below
from fedhead.core.system.errors import BadInput, require_known
from fedhead.core.tree.tree import Tree

Decay = Annotated[float, AtLeast(0), Below(1)]  # decay rate of a moving average


@dataclass(frozen=True)
class SGD(Checked):
    """Stochastic gradient descent with momentum and L2 weight decay, as in `torch.optim.SGD`.

    Args:
        lr: Learning rate.
        momentum: Momentum factor.
        weight_decay: L2 penalty.
        nesterov: Whether to use Nesterov momentum.
    """

    lr: Annotated[float, Above(0)] = 0.01
    momentum: Decay = 0.0
    weight_decay: Annotated[float, AtLeast(0)] = 0.0
    nesterov: bool = False

    def init(self, params: Tree) -> Tree:
        """Return the optimizer state before the first step.

        Args:
            params: Parameters.

        Returns:
            Optimizer state.
        """
        return Tree(velocity=params.zeros()) if self.momentum else Tree()

    def step(self, params: Tree, grads: Tree, state: Tree, lr: Tensor | float) -> tuple[Tree, Tree]:
        """Take one step.

        Args:
            params: Parameters.
            grads: Gradients with the same names.
            state: Optimizer state, from `init` or the previous step.
            lr: Learning rate of this step.

        Returns:
            New parameters and new state.
        """
        g = list(grads.values())
        w = list(params.values())
        if self.weight_decay:
            g = _add(g, w, self.weight_decay)
        if self.momentum:
            v = _add(g, list(state["velocity"].values()), self.momentum)
            state = Tree(velocity=Tree(zip(params, v, strict=True)))
            g = _add(g, v, self.momentum) if self.nesterov else v
        w = list(torch._foreach_sub(w, torch._foreach_mul(g, lr)))
        return params.replace(dict(zip(params, w, strict=True))), state

    def step_in_place(self, params: Tree, grads: Tree, state: Tree, lr: Tensor | float) -> None:
        """Take one step that updates `params` and `state` in place.

        Args:
            params: Parameters, from `clone_for_in_place`.
            grads: Gradients with the same names.
            state: Optimizer state, from `clone_for_in_place`.
            lr: Learning rate of this step.
        """
        torch._fused_sgd_(
            list(params.values()),
            _match_strides(grads, params),
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
class Adam(Checked):
    """Adam with L2 weight decay, as in `torch.optim.Adam`.

    Args:
        lr: Learning rate.
        betas: Decay rates of the running means of the gradient and of its square.
        eps: Term added to the denominator.
        weight_decay: L2 penalty.
    """

    lr: Annotated[float, Above(0)] = 1e-3
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Annotated[float, AtLeast(0)] = 1e-8
    weight_decay: Annotated[float, AtLeast(0)] = 0.0

    decoupled: ClassVar[bool] = False  # whether weight decay is applied to the weights instead of the gradients

    def init(self, params: Tree) -> Tree:
        """Return the optimizer state before the first step.

        Args:
            params: Parameters.

        Returns:
            Optimizer state.
        """
        first = next(iter(params.values()))
        return Tree(step=first.new_zeros(()), mean=params.zeros(), square=params.zeros())

    def step(self, params: Tree, grads: Tree, state: Tree, lr: Tensor | float) -> tuple[Tree, Tree]:
        """Take one step.

        Args:
            params: Parameters.
            grads: Gradients with the same names.
            state: Optimizer state, from `init` or the previous step.
            lr: Learning rate of this step.

        Returns:
            New parameters and new state.
        """
        b1, b2 = self.betas
        g, w = list(grads.values()), list(params.values())
        if self.weight_decay and self.decoupled:
            w = list(torch._foreach_mul(w, 1 - lr * self.weight_decay))
        elif self.weight_decay:
            g = _add(g, w, self.weight_decay)
        t = state["step"] + 1
        m = list(torch._foreach_mul(list(state["mean"].values()), b1))
        torch._foreach_add_(m, g, alpha=1 - b1)
        s = list(torch._foreach_mul(list(state["square"].values()), b2))
        torch._foreach_addcmul_(s, g, g, value=1 - b2)
        # a stack has one step counter per client: append axes so that it broadcasts over the parameter
        size = lr / (1 - torch.pow(b1, t))
        root = torch.sqrt(1 - torch.pow(b2, t))
        w = [
            p - _expand_like(size, p) * mi / (torch.sqrt(si) / _expand_like(root, p) + self.eps)
            for p, mi, si in zip(w, m, s, strict=True)
        ]
        names = list(params)
        state = Tree(step=t, mean=Tree(zip(names, m, strict=True)), square=Tree(zip(names, s, strict=True)))
        return params.replace(dict(zip(names, w, strict=True))), state

    def step_in_place(self, params: Tree, grads: Tree, state: Tree, lr: Tensor | float) -> None:
        """Take one step that updates `params` and `state` in place.

        Args:
            params: Parameters, from `clone_for_in_place`.
            grads: Gradients with the same names.
            state: Optimizer state, from `clone_for_in_place`.
            lr: Learning rate of this step.
        """
        state["step"].add_(1)
        step = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        step(
            list(params.values()),
            _match_strides(grads, params),
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


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay, as in `torch.optim.AdamW`.

    Args:
        lr: Learning rate.
        betas: Decay rates of the running means of the gradient and of its square.
        eps: Term added to the denominator.
        weight_decay: Decay rate: each step multiplies the weights by 1 - lr * weight_decay.
    """

    weight_decay: Annotated[float, AtLeast(0)] = 1e-2

    decoupled: ClassVar[bool] = True


def clip_norm(grads: Tree, limit: float) -> Tree:
    """Scale gradients down to a norm of at most `limit`, as `torch.nn.utils.clip_grad_norm_`.

    Args:
        grads: Gradients of one client.
        limit: Maximum norm of all gradients together.

    Returns:
        Gradients, scaled if their norm exceeds the limit.
    """
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads.values()]))
    scale = (limit / (norm + 1e-6)).clamp_max(1.0)
    return grads.map(lambda g: g * scale)


def clone_for_in_place(params: Tree, state: Tree) -> tuple[Tree, Tree]:
    """Copy parameters and optimizer state, with equal strides, for `step_in_place`."""
    copy = params.clone()
    return copy, _lay_out_state(Tree({n: t.clone() for n, t in state.items()}), copy)


def _lay_out_state(state: Tree, like: Tree) -> Tree:
    """Return an optimizer state whose trees have the strides of the parameters."""
    return Tree(
        {n: Tree(zip(t, _match_strides(t, like), strict=True)) if isinstance(t, Tree) else t for n, t in state.items()}
    )


def _match_strides(tree: Tree, like: Tree) -> list[Tensor]:
    """Return tensors with the strides of `like`, since fused kernels traverse memory in storage order."""
    return [_with_strides(t, other) for t, other in zip(tree.values(), like.values(), strict=True)]


def _with_strides(t: Tensor, like: Tensor) -> Tensor:
    if t.stride() == like.stride():
        return t
    same = all(a == b for a, b, size in zip(t.stride(), like.stride(), t.shape, strict=True) if size > 1)
    if same:  # the stride of a dimension of size 1 is irrelevant
        return t.as_strided(like.shape, like.stride())
    return torch.empty_like(like).copy_(t)


def _add(a: list[Tensor], b: list[Tensor], factor: float) -> list[Tensor]:
    """Return a + factor · b."""
    return list(torch._foreach_add(a, b, alpha=factor))


def _expand_like(scalar: Tensor, like: Tensor) -> Tensor:
    return scalar.reshape(scalar.shape + (1,) * (like.dim() - scalar.dim()))


Optimizer = SGD | Adam
OPTIMIZERS = ("sgd", "adam", "adamw")


def make_optimizer(
    name: str,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    nesterov: bool = False,
) -> Optimizer:
    """Create an optimizer by its name.

    Args:
        name: `sgd`, `adam` or `adamw`.
        lr: Learning rate.
        momentum: Momentum of SGD; Adam uses `betas` instead.
        weight_decay: L2 penalty; decoupled for AdamW.
        betas: Decay rates of Adam's running means of the gradient and of its square.
        nesterov: Whether SGD uses Nesterov momentum.

    Returns:
        Optimizer with these parameters.

    Raises:
        BadInput: If the optimizer is unknown, or lacks a parameter that was given.

    >>> make_optimizer("sgd", 0.1, momentum=0.9)
    SGD(lr=0.1, momentum=0.9, weight_decay=0.0, nesterov=False)
    """
    require_known("optimizer", str(name), OPTIMIZERS)
    if name == "sgd":
        if nesterov and not momentum:
            raise BadInput("nesterov: it needs momentum, such as momentum=0.9")
        if tuple(betas) != Adam.betas:
            raise BadInput(f"betas: {list(betas)} would have no effect with sgd: set momentum, or optimizer=adam")
        return SGD(lr, momentum, weight_decay, nesterov)
    if nesterov or momentum:
        option = "nesterov" if nesterov else f"momentum: {momentum}"
        raise BadInput(f"{option} is for sgd; {name}'s averages are set by betas, leave momentum at 0")
    return (AdamW if name == "adamw" else Adam)(lr, betas, weight_decay=weight_decay)
