"""Memory floor of a step: its speed if it were limited by memory bandwidth alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from fedhead.bench.timing import fastest, seconds
from fedhead.models.split_model import SplitModel


def floor_bytes(model: SplitModel, shape: Sequence[int], batch: int, width: int) -> float:
    """Return the minimum number of bytes that a step reads and writes.

    The forward pass writes and reads every layer's output once. The backward pass reads it again, and writes and reads
    its gradient once. For each parameter, in float32: two reads, gradient written and read, momentum read and written,
    parameter written.

    Args:
        model: Model to train.
        shape: Shape of a sample.
        batch: Samples per step.
        width: Bytes per element of the activations.
    """
    sizes: list[int] = []
    model = copy.deepcopy(model).to("cpu", torch.float32).eval()
    leaves = [m for m in model.modules() if not list(m.children()) and not isinstance(m, nn.Identity)]
    hooks = [m.register_forward_hook(lambda m, i, out: sizes.append(out.numel())) for m in leaves]
    with torch.no_grad():
        model(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    parameters = sum(p.numel() for p in model.parameters())
    return 5 * width * batch * sum(sizes) + 7 * 4 * parameters


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes per second that a large copy reads and writes."""
    a = torch.empty(2**30 if device.type == "cuda" else 2**27, dtype=torch.uint8, device=device)
    b = torch.empty_like(a)
    return 2 * a.numel() / fastest(lambda: seconds(lambda: b.copy_(a), device), repeats=5)
