"""Original module of a `SplitModel`, and the conversion back to it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Origin:
    """Copy of the user's module before splitting, with the names of its parts.

    Args:
        module: A copy of the module.
        classifier: Dotted name of its classifier.
        projection: Dotted name of its projection, if it has one.
    """

    def __init__(self, module: nn.Module, classifier: str, projection: str | None = None):
        self.module, self.classifier, self.projection = module, classifier, projection

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        return self  # immutable, so copies of a model share it

    def own_name(self, name: str) -> str:
        """Return the name of a split model's weight in the user's module.

        >>> Origin(nn.Linear(2, 2), "head.fc").own_name("classifier.weight")
        'head.fc.weight'
        """
        part, _, rest = name.partition(".")
        before = {"extractor": "", "projection": self.projection, "classifier": self.classifier}.get(part, part)
        return f"{before}.{rest}" if before else rest

    def assemble(self, model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
        """Return a copy of the user's module with trained weights, in evaluation mode.

        A changed head (`with_head`) replaces the original classifier.

        Args:
            model: `SplitModel` that was split from it.
            weights: Weights of the `SplitModel`.
        """
        module = copy.deepcopy(self.module)
        if self._new_head(model):
            names = ["classifier"] if self.projection else ["projection", "classifier"]
            parts = [model.get_submodule(name) for name in names]
            head = nn.Sequential(*(copy.deepcopy(part) for part in parts if not isinstance(part, nn.Identity)))
            module.set_submodule(self.classifier, head if len(head) > 1 else head[0])
        targets = _tensors(module)
        with torch.no_grad():
            for name, trained in weights.items():
                targets[self._name_in(model, name)].copy_(trained)
        return module.eval()

    def _new_head(self, model: nn.Module) -> bool:
        before, now = self.module.get_submodule(self.classifier), model.get_submodule("classifier")
        shapes = [{name: t.shape for name, t in _tensors(head).items()} for head in (before, now)]
        if type(before) is not type(now) or shapes[0] != shapes[1]:
            return True
        return self._adds_projection(model)

    def _adds_projection(self, model: nn.Module) -> bool:
        """Return whether the new head added a projection; it is then a sequence of two modules."""
        return self.projection is None and not isinstance(model.get_submodule("projection"), nn.Identity)

    def _name_in(self, model: nn.Module, name: str) -> str:
        part, _, rest = name.partition(".")
        if part != "extractor" and self._adds_projection(model):
            return f"{self.classifier}.{0 if part == 'projection' else 1}.{rest}"
        return self.own_name(name)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the named parameters and floating-point buffers."""
    buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
    return {**dict(module.named_parameters()), **buffers}
