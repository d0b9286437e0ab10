"""The cross entropy that is written out."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.func import vmap
from torch.nn import functional as F

from fedhead.core.training.losses import cross_entropies


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stacked", [False, True])
def test_values_and_gradients_are_torchs_to_the_last_bit(dtype: torch.dtype, stacked: bool) -> None:
    torch.manual_seed(0)
    y, scale = torch.randint(0, 10, (8, 32)), torch.rand(8, 32, dtype=dtype)
    found = []
    for function in (cross_entropies, lambda logits, y: F.cross_entropy(logits, y, reduction="none")):
        logits = (5 * torch.randn(8, 32, 10, generator=torch.Generator().manual_seed(1))).to(dtype).requires_grad_()
        each = vmap(function)(logits, y) if stacked else torch.stack(list(map(function, logits, y)))
        found.append((each.detach(), *torch.autograd.grad((scale * each).sum(), logits)))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


@pytest.mark.slow
def test_a_stack_is_trained_without_symbolic_shapes() -> None:
    """Importing them takes about a second, in a command that may take five."""
    code = (
        "import sys, fedhead as fh; from fedhead.testing import small;"
        "fh.run(small.small_federation(), small.small_model(), 'fedavg', rounds=1, executor='stack', device='cpu');"
        "print('torch.fx.experimental.symbolic_shapes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip().splitlines()[-1:] == ["False"], done.stderr
