"""Run folders that must hold the same."""

from __future__ import annotations

from pathlib import Path

import torch

from fedhead.core.tree.treefile import load_tree
from fedhead.runs.run_folder import RunFolder


def assert_same_runs(one: Path, other: Path) -> None:
    """Assert that two run folders hold the same weights, states, metrics and accuracies, bit for bit."""
    names = sorted(path.name for path in one.glob("*.safetensors"))
    assert names == sorted(path.name for path in other.glob("*.safetensors"))
    for name in names:
        a, b = load_tree(one / name)[0].leaves(), load_tree(other / name)[0].leaves()
        assert list(a) == list(b)
        assert all(torch.equal(a[leaf], b[leaf]) for leaf in a), f"{other / name}"
    rows = [[{**row, "seconds": 0} for row in RunFolder.open(path).metrics()] for path in (one, other)]
    assert rows[0] == rows[1]
    first, second = (RunFolder.open(path).result() or {} for path in (one, other))
    assert first["accuracy"] == second["accuracy"]
    stages = [{name: stage["accuracy"] for name, stage in (run.get("stages") or {}).items()} for run in (first, second)]
    assert stages[0] == stages[1]
