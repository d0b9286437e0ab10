"""The page of a folder of results: what it counts, what it leaves out, and what it does not overwrite."""

from __future__ import annotations

import re
from pathlib import Path

from made_results import enter

from fedhead.report import results_page


def count(folder: Path, pattern: str) -> list[str]:
    """Return the numbers of a phrase of the page."""
    match = re.search(pattern, results_page.write(folder).read_text(encoding="utf-8"))
    assert match is not None
    return list(match.groups())


def test_a_published_value_that_cells_of_two_tables_have_counts_once(tmp_path: Path) -> None:
    enter(tmp_path, "ccvr/table3", {"fedavg 50 cifar10-0.5": {0: 71.1}})  # Figure 7 has it too, by other columns
    enter(tmp_path, "ccvr/table2", {"cifar10-0.5 fedavg before": {0: 68.7}})
    said = r"(\d+) of the papers' 463 published values are measured; \d+ of (\d+) cells"
    assert count(tmp_path, said) == ["3", "5"]  # FedAvg before is in Tables 1 and 2 and in Figure 7
