"""Functional calls of modules: a module applied with other tensors in place of its own.

`torch.func.functional_call` does the same, with checks that cost one or two milliseconds per call: more than a
training step of a small model. Here the tensors' locations are looked up once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

KEPT_AS = "_functional"  # attribute of a module that keeps its `Functional`
Slot = tuple[dict[str, Any], str, str]  # dictionary of a module, key in it, full name


class Functional:
    """A module as a function of its weights: `Functional(module)(weights, x)`.

    Args:
        module: Any module.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> Functional(layer)({"weight": torch.ones(1, 2)}, torch.ones(3, 2)).tolist()
    [[2.0], [2.0], [2.0]]
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self._slots: list[Slot] = []
        first: dict[int, str] = {}  # tied tensors are known by their first name
        for path, child in module.named_modules(remove_duplicate=False):
            for place in (child._parameters, child._buffers):
                for key, value in place.items():
                    if value is not None:
                        name = first.setdefault(id(value), f"{path}.{key}" if path else key)
                        self._slots.append((place, key, name))

    def __call__(self, weights: Mapping[str, Tensor], *inputs: Any) -> Any:
        """Apply the module with these weights; entries that are missing keep the module's own values."""
        if torch.compiler.is_compiling():  # the compiler supports functional_call, not the code below
            return torch.func.functional_call(self.module, dict(weights), inputs)
        slots = [(place, key, weights[name]) for place, key, name in self._slots if name in weights]
        own = [place[key] for place, key, _ in slots]
        try:
            for place, key, value in slots:
                place[key] = value
            return self.module(*inputs)
        finally:
            for (place, key, _), value in zip(slots, own, strict=True):
                place[key] = value


def call(module: nn.Module, weights: Mapping[str, Tensor], *inputs: Any) -> Any:
    """Compute `Functional(module)(weights, *inputs)`, keeping the `Functional` with the module for later calls."""
    found = module.__dict__.get(KEPT_AS)
    if found is None:
        found = module.__dict__[KEPT_AS] = Functional(module)
    return found(weights, *inputs)
