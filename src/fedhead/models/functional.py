"""Calling a module with other tensors in place of its own, many times a second.

`torch.func.functional_call` does the same, with checks that cost a millisecond or two a call on a small model: more
than a step of it takes. Here the places are looked up once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Slot = tuple[dict[str, Any], str, str]  # a module's own dictionary, the key in it, the full name


class Functional:
    """A module as a function of its weights: `Functional(module)(weights, x)`.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> Functional(layer)({"weight": torch.ones(1, 2)}, torch.ones(3, 2)).tolist()
    [[2.0], [2.0], [2.0]]
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self._slots: list[Slot] = []
        first: dict[int, str] = {}  # tied tensors go by the name under which they come first
        for path, child in module.named_modules(remove_duplicate=False):
            for place in (child._parameters, child._buffers):
                for key, value in place.items():
                    if value is not None:
                        name = first.setdefault(id(value), f"{path}.{key}" if path else key)
                        self._slots.append((place, key, name))

    def __call__(self, weights: Mapping[str, Tensor], *inputs: Any) -> Any:
        """The module's output with these weights; entries that are not given keep the module's own values."""
        if torch.compiler.is_compiling():  # the compiler knows this form and can't follow ours
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
    """`Functional(module)(weights, *inputs)`, the places looked up at the first call and kept with the module."""
    found = module.__dict__.get("_functional")
    if found is None:
        found = module.__dict__["_functional"] = Functional(module)
    return found(weights, *inputs)
