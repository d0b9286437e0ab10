"""Training of a classifier on features, for calibration.

Launching a step of a head takes longer than computing it. So the gradient of a linear head is written out, terms that
don't depend on the weights are computed for many steps at once, and on a GPU many steps are captured in one CUDA graph.
Batches are drawn epoch by epoch, while the GPU trains on the previous epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedhead.core.system.cuda_graphs import capture
from fedhead.core.system.errors import BadInput
from fedhead.core.training import batching
from fedhead.core.training.batching import BatchSchedule
from fedhead.core.training.losses import cross_entropy
from fedhead.core.training.optimizers import Optimizer, clone_for_in_place
from fedhead.core.tree.transfer import to_device
from fedhead.core.tree.tree import Tree
from fedhead.models.split_model import SplitModel, classify

STEPS_PER_GRAPH = 128


class Features(NamedTuple):
    """Features, labels and weights of several steps, [steps, batch, ...], or of one step, [batch, ...]."""

    z: Tensor
    y: Tensor
    weight: Tensor  # 0 for padding
    target: Tensor  # one-hot labels, [..., classes]
    share: Tensor  # weight of each sample in the mean loss of its batch


Gradient = Callable[[Tree, Features], Tree]  # gradient of the loss of one batch


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
    """Continue training a head with cross entropy on features.

    Args:
        model: Model with the classifier's architecture.
        head: Classifier parameters, keyed by full name.
        z: Features, [N, d].
        y: Labels, [N].
        optimizer: Optimizer and its learning rate.
        epochs: Number of epochs.
        batch_size: Features per step.
        key: Random key of the batch order.

    Returns:
        Trained parameters, keyed by full name.

    Raises:
        BadInput: If training diverges.
    """
    first = next(iter(head.values()))
    z, y = z.to(first.device, first.dtype), y.to(first.device)
    params = Tree({name: t.detach() for name, t in head.items()})
    params, state = clone_for_in_place(params, optimizer.init(params))
    gradient = linear_gradient if _is_plain_linear(model, params) else autograd_gradient(model)
    steps = _Steps(gradient, optimizer, params, state)
    with torch.no_grad():
        for rows, weight in _chunks(batching.draw_epochs(len(y), batch_size, epochs, key)):
            steps.run(_features(z, y, to_device(rows, z.device), to_device(weight, z.device, z.dtype), model.classes))
    if not params.finite():
        raise BadInput(f"calibration diverged at learning rate {optimizer.lr:g}: use a smaller one")
    return params


def _chunks(epochs: Iterable[BatchSchedule]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield positions and weights in chunks of `STEPS_PER_GRAPH` steps; the last chunk may be smaller."""
    steps = (step for epoch in epochs for step in zip(epoch.positions, epoch.weight, strict=True))
    while chunk := list(islice(steps, STEPS_PER_GRAPH)):
        rows, weight = zip(*chunk, strict=True)
        yield np.stack(rows), np.stack(weight)


def _features(z: Tensor, y: Tensor, rows: Tensor, weight: Tensor, classes: int) -> Features:
    """Gather the features, one-hot labels and weights of several steps."""
    labels = y[rows]
    target = torch.zeros(*labels.shape, classes, dtype=z.dtype, device=z.device).scatter_(-1, labels[..., None], 1.0)
    return Features(z[rows], labels, weight, target, weight / weight.sum(-1, keepdim=True))


class _Steps:
    """In-place training steps; on a GPU, full chunks are replayed from a CUDA graph."""

    def __init__(self, gradient: Gradient, optimizer: Optimizer, params: Tree, state: Tree):
        self.gradient, self.optimizer, self.params, self.state = gradient, optimizer, params, state
        self.static: Features | None = None  # input buffers of the graph
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self, batches: Features) -> None:
        """Run one step per batch."""
        if not batches.z.is_cuda or len(batches.z) < STEPS_PER_GRAPH:
            self._train(batches)
        elif self.static is None:  # the first steps also let libraries select kernels and allocate workspace
            self._train(batches)
            self.static = batches
        else:
            for to, t in zip(self.static, batches, strict=True):
                to.copy_(t)
            if self.graph is None:
                self.graph = capture(partial(self._train, self.static))
            self.graph.replay()

    def _train(self, batches: Features) -> None:
        for batch in zip(*batches, strict=True):
            grads = self.gradient(self.params, Features(*batch))
            self.optimizer.step_in_place(self.params, grads, self.state, self.optimizer.lr)


def _is_plain_linear(model: SplitModel, params: Tree) -> bool:
    classifier = model.classifier
    names = {f"classifier.{name}" for name, _ in classifier.named_parameters()}
    return type(classifier) is nn.Linear and set(params) == names


def linear_gradient(params: Tree, batch: Features) -> Tree:
    """Compute the cross entropy's gradient of a linear head: (softmax(zWᵀ + b) − onehot(y))ᵀ z, weighted per sample."""
    w, b = params["classifier.weight"], params.get("classifier.bias")
    logits = batch.z @ w.mT if b is None else torch.addmm(b, batch.z, w.mT)
    slope = logits.softmax(-1).sub_(batch.target).mul_(batch.share[:, None])
    grads = {"classifier.weight": slope.mT @ batch.z, "classifier.bias": slope.sum(0)}
    return Tree({name: grads[name] for name in params})


def autograd_gradient(model: SplitModel) -> Gradient:
    """Return a function that computes the cross entropy's gradient of any head."""

    def gradient(params: Tree, batch: Features) -> Tree:
        leaves = params.map(lambda t: t.detach().requires_grad_())
        with torch.enable_grad():
            loss = cross_entropy(classify(model, leaves, batch.z), batch.y, batch.weight)
            grads = torch.autograd.grad(loss, list(leaves.values()))
        return Tree(zip(params, grads, strict=True))

    return gradient
