"""Numerical precision of models."""

from __future__ import annotations

import torch

from fedhead.core.errors import unknown

PRECISIONS = ("fp32", "tf32", "bf16")


def set_precision(name: str) -> bool:
    """Set the precision of float32 matrix products on a GPU, for the whole process.

    Args:
        name: "fp32" is plain float32; "tf32" lets tensor cores round the factors to ten bits; "bf16" computes in
            bfloat16 with float32 weights, optimizer state and statistics.

    Returns:
        Whether models are to compute in bfloat16.

    Raises:
        BadInput: If the name is unknown.
    """
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    torch.backends.cuda.matmul.allow_tf32 = name != "fp32"
    torch.backends.cudnn.allow_tf32 = name != "fp32"
    return name == "bf16"
