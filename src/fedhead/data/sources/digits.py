"""scikit-learn's digits, read from its file without the slow import of scikit-learn."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = Path("datasets", "data", "digits.csv.gz")


def load_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the images as rows of 64 levels from 0 to 16, and their labels, as `sklearn.datasets.load_digits` does."""
    spec = importlib.util.find_spec("sklearn")  # without importing it
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    archive = next((path for path in (Path(folder) / FILE for folder in folders) if path.is_file()), None)
    if archive is None:  # moved in another release
        from sklearn import datasets

        digits: tuple[NDArray[Any], NDArray[Any]] = datasets.load_digits(return_X_y=True)
        return digits
    with gzip.open(archive, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)
