"""Memory with many clients, many rounds and many classes, by `benchmarks/scale.py` at smaller sizes."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.environ.get("FEDHEAD_FAULTS") != "full", reason="takes minutes: make test-faults"),
]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scale.py"


@pytest.fixture(scope="module")
def scale() -> Any:
    spec = importlib.util.spec_from_file_location("scale", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_memory_does_not_grow_with_the_rounds(scale: Any, tmp_path: Path) -> None:
    few, many = (
        scale.measure([*scale.CLIENTS, "clients=3000", f"rounds={rounds}"], tmp_path / str(rounds))
        for rounds in (10, 100)
    )
    assert many["rounds"] == 100
    assert many["memory_mb"] < few["memory_mb"] + 25
    assert many["report_memory_mb"] < few["report_memory_mb"] + 25


@pytest.mark.parametrize("case", ["ccvr-full-128", "ccvr-low-rank-128", "fedetf"])
def test_a_thousand_classes_stay_below_one_and_a_half_gigabytes(scale: Any, case: str, tmp_path: Path) -> None:
    # A trial would choose the executor, and stacked statistics take half as much again.
    found = scale.measure([*scale.CASES[case], "rounds=1", "--executor", "loop"], tmp_path / "run")
    assert found["memory_mb"] < 1500
    assert found["report_memory_mb"] < 1500
