"""For tests that need a GPU. Those of kernels run in Triton's interpreter on the CPU too: TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedhead.executors.kernels import common
from fedhead.executors.kernels.layers import StackedLayers
from fedhead.models.precision import set_precision

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if _INTERPRETED else "cuda"  # of the tests of kernels


def _needs(what: str, there: bool) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not there, reason=f"needs {what}")


needs_cuda = _needs("a CUDA device", torch.cuda.is_available())
GPU = [pytest.mark.gpu, needs_cuda]
KERNELS = [
    pytest.mark.gpu,
    _needs("Triton", common.available()),
    _needs("a CUDA device", torch.cuda.is_available() or _INTERPRETED),
]


def compare(layer: nn.Module, clients: int, *shape: int) -> None:
    """A stack of such layers, with weights for each client, against plain ones in float64; their gradients too."""
    set_precision("fp32")
    generator = torch.Generator().manual_seed(0)
    shapes = [shape, *(p.shape for p in layer.parameters())]
    exact = [torch.randn(clients, *s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    names = [name for name, _ in layer.named_parameters()]

    def applied(x: Tensor, *own: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, own, strict=True)), (x,))  # type: ignore[no-any-return]  # torch's

    plain = torch.stack([applied(*one) for one in zip(*exact, strict=True)])
    ours = [t.detach().float().to(DEVICE).requires_grad_() for t in exact]
    with StackedLayers():
        found = vmap(applied)(*ours)
    slope = torch.randn(plain.shape, generator=generator, dtype=torch.float64)
    grads = torch.autograd.grad(found, ours, slope.float().to(DEVICE)), torch.autograd.grad(plain, exact, slope)
    for mine, theirs in [(found, plain), *zip(*grads, strict=True)]:
        torch.testing.assert_close(mine.cpu().double(), theirs.detach(), atol=1e-4, rtol=1e-4)
