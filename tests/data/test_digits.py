"""scikit-learn's digits without importing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn import datasets

from fedhead.data.sources import digits


@pytest.mark.parametrize("moved", [False, True])
def test_digits_are_those_of_scikit_learn(moved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a release keeps the file elsewhere."""
    if moved:
        monkeypatch.setattr(digits, "FILE", Path("elsewhere.csv.gz"))
    x, y = digits.load_digits()
    expected_x, expected_y = datasets.load_digits(return_X_y=True)
    np.testing.assert_array_equal(x, expected_x)
    np.testing.assert_array_equal(y, expected_y)
    assert (x.dtype, y.dtype) == (expected_x.dtype, expected_y.dtype)


@pytest.mark.slow
def test_digits_are_loaded_without_importing_scikit_learn() -> None:
    """Importing it takes a command of a few rounds about a third of its time."""
    code = "import sys, fedhead as fh; fh.Federation.load('digits', 'iid', clients=2); print('sklearn' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
