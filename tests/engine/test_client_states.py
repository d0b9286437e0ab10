"""A thousand clients of CIFAR's size fit into little memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np
import fedhead as fh

rng = np.random.RandomState(0)
x = rng.randint(0, 256, (50_000, 3, 32, 32), dtype=np.uint8)
test = (x[:1000], rng.randint(0, 10, 1000))
fed = fh.Federation.from_arrays(x, rng.randint(0, 10, 50_000), "iid", clients=1000, classes=10, test=test)
del x
fh.run(fed, "simplecnn", sys.argv[1], rounds=2, participation=0.05, batch_size=50, executor=sys.argv[2], device="cpu")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "executor"), [("fedavg", "loop"), ("scaffold", "stack")])
def test_a_thousand_clients_stay_under_two_gigabytes(method: str, executor: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, method, executor], capture_output=True, text=True, check=True, timeout=280
    )
    assert int(done.stdout.split()[-1]) < 2e9
