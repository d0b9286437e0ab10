"""Draws of clients' code from global generators, which a run's seed does not decide unless a loop seeds them."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager

import torch

from fedhead.core.training.global_generators import warn_of_draws


def warn_of_client_draws(
    executor: str, algorithm: str, device: torch.device | None = None, leave_out: Collection[str] = ()
) -> AbstractContextManager[None]:
    """Warn, once, of hooks inside this context that draw from torch's, numpy's or Python's global generators.

    Args:
        executor: The name of the executor that calls the hooks.
        algorithm: The name of the method or stage whose hooks they are.
        device: A GPU whose generator is one of them.
        leave_out: Whose generators are not looked at.
    """
    fix = "draw by key, fh.random.uniform(batch.key), or use executor=loop"
    return warn_of_draws(f"executor {executor}: {algorithm} or its model", fix, device, leave_out)
