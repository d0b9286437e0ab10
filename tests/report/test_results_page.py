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


def test_a_training_counts_once_however_many_cells_start_from_it(tmp_path: Path) -> None:
    for virtual in (50, 100, 500):
        took = {"training_seconds": 1200.0, "stage_seconds": virtual * 0.6, "commit": "one"}
        enter(tmp_path, "ccvr/table3", {f"fedavg {virtual} cifar10-0.5": {0: 71.0}}, **took)
    enter(tmp_path, "ccvr/table5", {"fedavg 100 cifar10-0.5": {0: 71.0}}, training_seconds=1201.0, commit="one")
    said = r"included: (\d+) trainings in (.*?), their stages in (.*?) on"
    assert count(tmp_path, said) == ["1", "20.0 min", "6.5 min"]
    enter(tmp_path, "ccvr/table2", {"cifar10-0.1 fedavg before": {0: 52.0, 1: 53.0}}, training_seconds=1200.0)
    assert count(tmp_path, said)[:2] == ["3", "60.0 min"]
    changed = {"partition": "dirichlet(0.1, moon)"}
    enter(tmp_path, "ccvr/table2", {"cifar10-0.1 fedavg before": {0: 60.0}}, changed, training_seconds=1200.0)
    enter(tmp_path, "ccvr/table2", {"cifar10-0.1 fedavg ccvr": {0: 65.0}}, changed, training_seconds=1200.0)
    assert count(tmp_path, said)[:2] == ["4", "80.0 min"]
    again = {"cifar10-0.5 fedavg before": {0: 68.0}}  # once more, by other code
    enter(tmp_path, "ccvr/table2", again, training_seconds=1200.0, commit="two")
    assert count(tmp_path, said)[:2] == ["5", "1.7 h"]


def test_two_values_of_one_stage_have_its_time_once(tmp_path: Path) -> None:
    values = {"step-global": {7: 61.0}, "step-extractor": {7: 87.0}}
    enter(tmp_path, "fedetf/figure6", values, stage_seconds=600.0)
    assert count(tmp_path, r"their stages in (.*?) on") == ["10.0 min"]
