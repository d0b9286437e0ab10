"""Global random generators of torch, numpy and Python, from which users' code may draw.

fedhead itself draws by key (`fedhead.core.training.random`).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_lock = threading.RLock()


def states(device: torch.device | None = None) -> dict[str, Any]:
    """Return the comparable states of the generators, keyed by library.

    Args:
        device: GPU whose generator is included.
    """
    _, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 (read only)
    by_library = {
        "torch": torch.default_generator.get_state().numpy().tobytes(),
        "numpy": (np.asarray(words).tobytes(), *rest),
        "random": random.getstate(),
    }
    if device is not None and device.type == "cuda":
        by_library["torch.cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return by_library


@contextmanager
def seeded(key: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the generators in this context and restore them afterwards; locks out other threads.

    Args:
        key: Seed of the generators.
        device: GPU whose generator is included.
    """
    on_gpu = device is not None and device.type == "cuda"
    with _lock, torch.random.fork_rng(devices=[device] if on_gpu else []):
        of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002 (to restore it)
        try:
            torch.default_generator.manual_seed(key)
            if on_gpu:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(key)
            np.random.seed(key % 2**32)  # noqa: NPY002 (users' code draws from it)
            random.seed(key)
            yield
        finally:
            np.random.set_state(of_numpy)  # noqa: NPY002 (to restore it)
            random.setstate(of_python)
