"""Fingerprints of values: they differ once a value has changed, and are cheap enough to be taken after every round."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedhead.core.system.plain_values import is_plain
from fedhead.models.module_digest import value_digest

LARGE = 1 << 18  # bytes of an array of which only a sample is read
SAMPLE = 1024  # elements
_DEEPEST = 6  # of lists in lists


def fingerprint(value: Any) -> Any:
    """Return something to compare that differs once a value has changed.

    A tensor is not read for it, since a GPU would have to wait, and of a large array only a sample is. Whoever compares
    fingerprints holds the first value, so that no later one has its `id`. An object that shows nothing of itself (one
    without `__dict__` that is printed as its address) has the same one always.

    Args:
        value: The value.
    """
    return _fingerprint(value, 0)


def _fingerprint(value: Any, depth: int) -> Any:
    if is_plain(value):
        return json.dumps(value)
    if isinstance(value, Tensor) and depth == 0:  # those in a list are compared by their content, as the list is
        return id(value), 0 if value.is_inference() else value._version
    if isinstance(value, nn.Module) and depth == 0:
        return id(value), [_fingerprint(t, 0) for t in (*value.parameters(), *value.buffers())]
    if (state := _generator_state(value)) is not None:
        return value_digest(state)
    if isinstance(value, np.ndarray) and value.nbytes > LARGE and not value.dtype.hasobject:
        steps = tuple(slice(None, None, max(1, side // _per_side(value.ndim))) for side in value.shape)
        return id(value), value_digest(value[steps])
    if depth < _DEEPEST and type(value) in (list, tuple):
        return type(value).__name__, [_fingerprint(one, depth + 1) for one in value]
    if depth < _DEEPEST and type(value) is dict:
        items = sorted(value.items(), key=lambda item: str(item[0]))
        return [(key, _fingerprint(one, depth + 1)) for key, one in items]
    try:
        return value_digest(value)
    except RuntimeError:  # it holds tensors that have escaped from a function of one client, called for many
        return object()


def _per_side(dimensions: int) -> int:
    """Return how many elements along each side a sample has."""
    return max(1, int(SAMPLE ** (1 / dimensions)))


def _generator_state(value: Any) -> Any:
    """Return the state of a generator of random numbers; None for anything else."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.BitGenerator):
        return value.state
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return str(value.getstate())
    return None
