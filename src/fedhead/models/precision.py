"""Precision: what runs in which number format."""

from __future__ import annotations

import torch

from fedhead.core.errors import unknown

PRECISIONS = ("fp32", "tf32", "bf16")


def set_precision(name: str) -> bool:
    """Set how exact float32 products are on a GPU, and say whether models compute in bfloat16.

    fp32 is plain float32; tf32 lets matrix units round its factors to ten bits; bf16 computes in bfloat16 with
    float32 weights, optimizer and statistics.
    """
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    torch.backends.cuda.matmul.allow_tf32 = name != "fp32"
    torch.backends.cudnn.allow_tf32 = name != "fp32"
    return name == "bf16"
