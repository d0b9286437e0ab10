"""Settings of all tests."""

import matplotlib
import pytest
import torch
from hypothesis import settings

from fedhead.core.system.log import warn_once

# One thread a worker: several workers with many spinning threads each are slower by far.
torch.set_num_threads(1)
matplotlib.use("Agg")

# Shared machines stall now and then, so an example has no deadline; the same examples are drawn every time.
settings.register_profile("fedhead", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("fedhead")


@pytest.fixture(autouse=True)
def _warnings_again() -> None:
    """Let every test see the warnings that are logged once per process."""
    warn_once.cache_clear()
