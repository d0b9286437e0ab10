"""A server merges the statistics of a thousand clients in seconds and in the memory of a few."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "merging.py"


@pytest.mark.long
def test_a_thousand_clients_of_1280_features_and_100_classes() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout)
    assert found["message_mb"] < 8
    assert found["cpu_seconds"] < 10  # of one thread, however busy the machine is
    assert found["peak_mb"] < 1000
