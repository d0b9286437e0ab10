"""Every file in examples/ runs as it is, in an empty folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from commands import succeed

EXAMPLES = Path(__file__).parents[2] / "examples"

ONNX = ["onnx", "onnxscript", "onnxruntime"]
NEEDS = {"huggingface.py": ["datasets"], "dataframe_to_onnx.py": ONNX, "table_to_onnx.py": ONNX}


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_python_examples_run(example: str, tmp_path: Path) -> None:
    for package in NEEDS.get(example, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed")
    assert succeed([sys.executable, str(EXAMPLES / example)], tmp_path)


@pytest.mark.deploy
@pytest.mark.drill
def test_the_deployment_runs(tmp_path: Path) -> None:
    succeed([str(EXAMPLES / "deployment.sh")], tmp_path)
    assert (tmp_path / "report.html").is_file()
