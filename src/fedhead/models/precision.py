"""Numerical precision of models."""

from __future__ import annotations

import warnings

import torch

from fedhead.core.system.errors import require_known
from fedhead.core.system.log import warn_once

PRECISIONS = ("fp32", "tf32", "bf16")


def check_precision(name: str) -> None:
    """Check the name of a precision.

    Raises:
        BadInput: If the name is not in `PRECISIONS`.
    """
    require_known("precision", name, PRECISIONS)


def set_precision(name: str, where: torch.device | None = None) -> bool:
    """Set the precision of float32 matrix products on GPUs for the whole process.

    Args:
        name: "fp32" is plain float32; "tf32" lets tensor cores round the factors to ten bits; "bf16" computes in
            bfloat16 with float32 weights, optimizer state and statistics.
        where: Device, if known; tf32 on a CPU is fp32 and logs a warning.

    Returns:
        Whether models compute in bfloat16.

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
    """Return whether a device has bfloat16 instructions; otherwise torch emulates them."""
    if where.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch has no types there
        return True  # unknown: no warning
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def warn_if_emulated(where: torch.device) -> None:
    """Warn if a device emulates bfloat16."""
    if has_bf16(where):
        return
    name = f"the GPU {torch.cuda.get_device_name(where)}" if where.type == "cuda" else "this CPU"
    warn_once(
        f"precision bf16: {name} has no instructions for bfloat16, so torch emulates them and is many times slower "
        "than in fp32; use fp32, or a device that has them"
    )
    # on some CPUs torch repeats this warning with forty lines of C++ stack
    warnings.filterwarnings("ignore", "mkldnn_matmul failed", UserWarning)
