"""Marks of tests that need a GPU. Those of kernels run in Triton's interpreter on the CPU too: TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch

from fedhead.stacked import common

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
