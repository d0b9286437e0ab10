"""Numerical precision of models."""

from __future__ import annotations

import warnings

import torch

from fedhead.core.system.errors import require_known
from fedhead.core.system.log import warn_once

PRECISIONS = ("fp32", "tf32", "bf16")


def check_precision(name: str) -> None:
    """Refuse an unknown precision.

    Raises:
        BadInput: The name is none of `PRECISIONS`.
    """
    require_known("precision", name, PRECISIONS)


def set_precision(name: str, where: torch.device | None = None) -> bool:
    """Set the precision of float32 matrix products on a GPU, for the whole process.

    Args:
        name: "fp32" is plain float32; "tf32" lets tensor cores round the factors to ten bits; "bf16" computes in
            bfloat16 with float32 weights, optimizer state and statistics.
        where: The device, if it is known; on a CPU tf32 is fp32, and a warning says so.

    Returns:
        Whether models are to compute in bfloat16.

    Raises:
        BadInput: If the name is unknown.
    """
    check_precision(name)
    if name == "tf32" and where is not None and where.type == "cpu":
        warn_once("precision tf32: only GPUs have it, and a CPU computes in fp32 instead; use fp32 there")
    torch.backends.cuda.matmul.allow_tf32 = name != "fp32"
    torch.backends.cudnn.allow_tf32 = name != "fp32"
    return name == "bf16"


def has_bf16(where: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16; torch emulates them where it has not."""
    if where.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch has no types there
        return True  # there is no one to ask
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def warn_if_emulated(where: torch.device) -> None:
    """Warn that models will compute in bfloat16 on a device that has no instructions for it."""
    if has_bf16(where):
        return
    name = f"the GPU {torch.cuda.get_device_name(where)}" if where.type == "cuda" else "this CPU"
    warn_once(
        f"precision bf16: {name} has no instructions for bfloat16, so torch emulates them and is many times slower "
        "than in fp32; use fp32, or a device that has them"
    )
    # torch says so itself on some CPUs, in forty lines with its C++ stack
    warnings.filterwarnings("ignore", "mkldnn_matmul failed", UserWarning)
