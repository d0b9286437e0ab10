"""Versions, device and commit of a run, for the record and for a resumed run to match."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from fedhead.core.system.version import VERSION

_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "safetensors")


def facts(device: torch.device) -> dict[str, Any]:
    """Return versions, platform and device of a run as JSON values."""
    return {
        "versions": {
            "python": platform.python_version(),
            "fedhead": VERSION,
            **{name: _version(name) for name in _PACKAGES},
        },
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "device_name": device_name(device),
        "commit": _commit(),
    }


def device_name(device: torch.device) -> str:
    """Return the name of a GPU or processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str | None:
    """Return the commit of fedhead's checkout, with a plus sign for local changes; None without a checkout."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    if git("ls-files", "--error-unmatch", str(Path(__file__))) is None:
        return None  # installed inside another project's repository
    return git("describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*")
