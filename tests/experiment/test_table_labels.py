"""What cells of tables are called: by the data that they were run with, and in the lines of progress."""

from __future__ import annotations

import pytest

from fedhead.data.datasets import DATASETS
from fedhead.experiment import tables


@pytest.mark.parametrize("name", tables.names())
def test_small_data_is_never_called_by_the_papers(name: str) -> None:
    for cell in tables.load(name).cells("small"):
        named = [label.split("-")[0] for label in cell.labels.values() if label.split("-")[0] in DATASETS]
        assert set(named) <= {cell.keys["dataset"]}, cell.name
