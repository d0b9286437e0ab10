"""Settings of all tests."""

import random
from types import SimpleNamespace

import matplotlib
import pytest
import torch
from hypothesis import settings

from fedhead.core.system.log import warn_once
from fedhead.engine.clients import private_rounds
from fedhead.privacy import noise

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


@pytest.fixture(autouse=True)
def _same_noise_every_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the operating system's entropy, of which the noise of differential privacy is drawn, by a seed.

    A test of noisy numbers would otherwise fail once in many runs, or its bounds would have to be too wide.
    """
    entropy = random.Random(request.node.nodeid)
    monkeypatch.setattr(noise, "os", SimpleNamespace(urandom=entropy.randbytes))
    monkeypatch.setattr(private_rounds, "secrets", SimpleNamespace(randbits=entropy.getrandbits))
