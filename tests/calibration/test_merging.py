"""Merging of statistics: of a thousand clients in the memory of a few, and of files that look wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedhead.calibration.files import merge_files, save_statistics
from fedhead.calibration.statistics import from_features
from fedhead.core.system.errors import BadInput

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "merging.py"


@pytest.mark.long
def test_a_thousand_clients_of_1280_features_and_100_classes() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout)
    assert found["message_mb"] < 8
    assert found["cpu_seconds"] < 10  # of one thread, however busy the machine is
    assert found["peak_mb"] < 1000


def test_files_without_samples_are_refused_and_unusual_counts_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    features = torch.randn(3, 20, 3, generator=torch.Generator().manual_seed(0))
    sites = [from_features(of_site, torch.arange(20) % 2, 2) for of_site in features]
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for path, site in zip(paths, sites, strict=True):
        save_statistics(path, site)
    merge_files(paths)
    assert not caplog.text
    large = replace(sites[0], count=sites[0].count * 1e9, sum=sites[0].sum * 1e9, outer=sites[0].outer * 1e9)
    save_statistics(paths[0], large)
    merge_files(paths)
    assert "0.safetensors has 20,000,000,000 samples, the others 20 (median): check this file" in caplog.text
    save_statistics(paths[0], replace(large, count=large.count * 0, sum=large.sum * 0, outer=large.outer * 0))
    with pytest.raises(BadInput, match=r"0\.safetensors holds no samples: leave it out"):
        merge_files(paths)
