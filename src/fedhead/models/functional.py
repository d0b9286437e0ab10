"""Functional calls of modules with given weights.

`torch.func.functional_call` does the same, with checks that take one or two milliseconds per call: more than a
training step of a small model. Here the tensors' locations are looked up once and cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

KEPT_AS = "_functional"  # module attribute that caches its `Functional`
Slot = tuple[dict[str, Any], str, str]  # dictionary of a module, key in it, full name


class Functional:
    """Module as a function of its weights: `Functional(module)(weights, x)`.

    Args:
        module: Any module.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> Functional(layer)({"weight": torch.ones(1, 2)}, torch.ones(3, 2)).tolist()
    [[2.0], [2.0], [2.0]]
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self._slots: list[Slot] = []
        first: dict[int, str] = {}  # tied tensors have the name of their first occurrence
        for path, child in module.named_modules(remove_duplicate=False):
            for tensors in (child._parameters, child._buffers):
                for key, value in tensors.items():
                    if value is not None:
                        name = first.setdefault(id(value), f"{path}.{key}" if path else key)
                        self._slots.append((tensors, key, name))

    def __call__(self, weights: Mapping[str, Tensor], *inputs: Any) -> Any:
        """Apply the module with these weights; missing entries keep the module's values."""
        if torch.compiler.is_compiling():  # the compiler supports functional_call, not the code below
            return torch.func.functional_call(self.module, dict(weights), inputs)
        slots = [(tensors, key, weights[name]) for tensors, key, name in self._slots if name in weights]
        originals = [tensors[key] for tensors, key, _ in slots]
        try:
            for tensors, key, value in slots:
                tensors[key] = value
            return self.module(*inputs)
        finally:
            for (tensors, key, _), value in zip(slots, originals, strict=True):
                tensors[key] = value


def call(module: nn.Module, weights: Mapping[str, Tensor], *inputs: Any) -> Any:
    """Compute `Functional(module)(weights, *inputs)`; the `Functional` is cached on the module."""
    function = module.__dict__.get(KEPT_AS)
    if function is None:
        function = module.__dict__[KEPT_AS] = Functional(module)
    return function(weights, *inputs)
