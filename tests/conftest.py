"""Settings for all tests."""

import matplotlib
import torch
from hypothesis import settings

# One thread a worker: several workers with many spinning threads each are slower by far.
torch.set_num_threads(1)
matplotlib.use("Agg")

# Shared machines stall now and then, so an example has no deadline; the same examples are drawn every time.
settings.register_profile("fedhead", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("fedhead")
