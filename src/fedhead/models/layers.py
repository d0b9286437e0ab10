"""Names and activations of a model's layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from fedhead.core.training.batch import PARTS
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree
from fedhead.models.split_model import SplitModel


def names(model: SplitModel) -> list[str]:
    """List the layers of a model: the direct children of its parts with parameters, and the classifier.

    >>> from fedhead.models import build
    >>> names(build("simplecnn", (3, 32, 32), 10))[-3:]
    ['projection.0', 'projection.1', 'classifier']
    """
    layers: list[str] = []
    for part in PARTS[:2]:
        module = model.get_submodule(part)
        if isinstance(module, nn.Linear):
            layers.append(part)
        layers += [f"{part}.{name}" for name, child in module.named_children() if list(child.parameters())]
    return [*layers, PARTS[2]]


def activations(model: SplitModel, x: Inputs, weights: Tree | None = None) -> dict[str, Tensor]:
    """Compute the outputs of all layers listed by `names`, in evaluation mode.

    Args:
        model: The model.
        x: Inputs, [B, ...].
        weights: Weights to use instead of the model's own.

    Returns:
        Output of each layer, in the order of the calls.
    """
    out: dict[str, Tensor] = {}

    def keep(name: str) -> RemovableHandle:
        layer = model.get_submodule(name)
        return layer.register_forward_hook(lambda _, inputs, output: out.__setitem__(name, output.detach()))

    hooks = [keep(name) for name in names(model)]
    training = model.training
    try:
        with torch.no_grad():
            functional_call(model.eval(), dict(weights or {}), (x,))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return out


def is_user_defined(layer: nn.Module) -> bool:
    """Return whether a layer's class is neither torch's nor fedhead's."""
    return not type(layer).__module__.startswith(("torch.", "fedhead."))
