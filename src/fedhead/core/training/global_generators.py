"""The generators that everyone shares: torch's, numpy's and Python's, from which users' code may draw.

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
    """Return the states of the generators by whose each is, in a form that can be compared.

    Args:
        device: A GPU whose generator is one of them.
    """
    _, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 (it is watched, not used)
    found = {
        "torch": torch.default_generator.get_state().numpy().tobytes(),
        "numpy": (np.asarray(words).tobytes(), *rest),
        "random": random.getstate(),
    }
    if device is not None and device.type == "cuda":
        found["torch.cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return found


@contextmanager
def seeded(key: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the generators inside this context, and put them back afterwards; one thread at a time may enter.

    Args:
        key: What they are seeded with.
        device: A GPU whose generator is one of them.
    """
    on_gpu = device is not None and device.type == "cuda"
    with _lock, torch.random.fork_rng(devices=[device] if on_gpu else []):
        of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002 (whose state is put back)
        try:
            torch.default_generator.manual_seed(key)
            if on_gpu:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(key)
            np.random.seed(key % 2**32)  # noqa: NPY002 (users' code draws from it)
            random.seed(key)
            yield
        finally:
            np.random.set_state(of_numpy)  # noqa: NPY002 (whose state is put back)
            random.setstate(of_python)
