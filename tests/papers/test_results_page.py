"""The page of a folder of results: what it counts, what it leaves out, and what it does not overwrite."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_results import enter

from fedhead.cli import call
from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables import results_page
from fedhead.papers.tables.results import Results


@pytest.fixture(autouse=True)
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the tables that no test here enters: each cell takes a moment."""
    every, ccvr = tables.names(), ("table1", "table2", "table3", "table5", "figure7")
    few = {name: every[name] for name in [*(f"ccvr/{name}" for name in ccvr), "fedclassavg/table4", "fedetf/figure6"]}
    monkeypatch.setattr(results_page, "tables", SimpleNamespace(names=lambda: few, load=tables.load))


def count(folder: Path, pattern: str) -> list[str]:
    """Return the numbers of a phrase of the page."""
    match = re.search(pattern, results_page.write(folder).read_text(encoding="utf-8"))
    assert match is not None
    return list(match.groups())


@pytest.mark.slow
def test_a_published_value_that_cells_of_two_tables_have_counts_once(tmp_path: Path) -> None:
    enter(tmp_path, "ccvr/table3", {"fedavg 50 cifar10-0.5": {0: 71.1}})  # Figure 7 has it too, by other columns
    enter(tmp_path, "ccvr/table2", {"cifar10-0.5 fedavg before": {0: 68.7}})
    said = r"(\d+) of the papers' 478 published values are measured, (\d+) .* by a variant .*\n\n- \d+ of (\d+) cells"
    assert count(tmp_path, said) == ["5", "0", "7"]  # FedAvg before is in Tables 1, 2, 3 and 5 and in Figure 7
    varied = {"partition": "dirichlet(0.1, moon)"}  # the variant moon-split-0.1
    enter(tmp_path, "ccvr/table2", {"cifar10-0.1 fedavg before": {0: 60.4}}, varied)
    assert count(tmp_path, said) == ["6", "1", "8"]
    enter(tmp_path, "ccvr/table2", {"cifar10-0.1 fedavg before": {0: 61.0}}, {"rounds": 9})  # no variant has it
    assert count(tmp_path, said) == ["6", "1", "8"]


@pytest.mark.slow
def test_a_variants_result_stands_under_each_table_that_has_its_cell(tmp_path: Path) -> None:
    varied = {"partition": "dirichlet(0.1, moon)"}
    for table, cell in (("ccvr/table2", "cifar10-0.1 fedavg before"), ("ccvr/table3", "fedavg before cifar10-0.1")):
        enter(tmp_path, table, {cell: {0: 60.4}}, varied)
    text = results_page.write(tmp_path).read_text(encoding="utf-8")
    assert re.findall(r"\| (ccvr/table\d) \| [^|]* \| `partition=dirichlet\(0.1, moon\)` \| 60.40 ", text) == [
        "ccvr/table2",
        "ccvr/table3",
    ]


@pytest.mark.slow
def test_a_training_counts_once_however_many_cells_start_from_it(tmp_path: Path) -> None:
    for virtual in (50, 100, 500):
        took = {"training_seconds": 1200.0, "stage_seconds": virtual * 0.6, "commit": "one"}
        enter(tmp_path, "ccvr/table3", {f"fedavg {virtual} cifar10-0.5": {0: 71.0}}, **took)
    enter(tmp_path, "ccvr/table5", {"fedavg 100 cifar10-0.5": {0: 71.0}}, training_seconds=1201.0, commit="one")
    said = r"side by side: (\d+) trainings in (.*?), their stages in (.*?) on"
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


@pytest.mark.slow
def test_two_values_of_one_stage_have_its_time_once(tmp_path: Path) -> None:
    values = {"step-global": {7: 61.0}, "step-extractor": {7: 87.0}}
    enter(tmp_path, "fedetf/figure6", values, stage_seconds=600.0)
    assert count(tmp_path, r"their stages in (.*?) on") == ["10.0 min"]


@pytest.mark.slow
def test_rows_that_no_cell_has_now_are_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enter(tmp_path, "ccvr/table2", {"cifar10-0.5 fedavg before": {0: 68.7}})
    page = results_page.write(tmp_path).read_text(encoding="utf-8")
    assert "Left out" not in page
    enter(tmp_path, "ccvr/table2", {"cifar10-0.5 fedavg ccvr": {0: 71.0, 1: 72.0}}, digest="of another setting")
    changed = {"stage.ccvr.power": 0.7}
    enter(tmp_path, "ccvr/table2", {"cifar10-0.1 fedavg ccvr": {0: 61.0}}, changed, digest="of another default")
    enter(tmp_path, "ccvr/table2", {"cifar10-0.05 fedavg before": {0: 9.0}}, digest="of digits", scale="small")
    assert call(["reproduce", "--summary", "--results", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    names = "ccvr/table2 cifar10-0.5 fedavg ccvr; ccvr/table2 cifar10-0.1 fedavg ccvr stage.ccvr.power=0.7."
    lost = f"Left out: 3 rows of settings, or of own code, that no table has now: {names}"
    small = "Left out: 1 row of scale small, which the published values are not compared with."
    assert f"\n\n{lost}\n\n{small}\n\n" in page
    assert capsys.readouterr().err == f"warning: {tmp_path}: {lost}\nwarning: {tmp_path}: {small}\n"
    assert "61.00" not in page


@pytest.mark.slow
def test_a_row_is_found_by_settings_that_hold_others(tmp_path: Path) -> None:
    stop = ["early_stopping(metric=personal_loss, patience=100)", "best_model(metric=personal_loss)"]
    changed = {"validation": 0.1, "callbacks": stop, "partition": "dirichlet(alpha=0.5, variant=capped)", "rounds": 150}
    enter(tmp_path, "fedclassavg/table4", {"cifar10 CA": {0: 80.0}}, changed)
    page = results_page.write(tmp_path).read_text(encoding="utf-8")
    assert "Left out" not in page
    assert "| 80.00 | 1 × 1 |" in page.partition("## Other settings")[2]


@pytest.mark.slow
def test_a_difference_is_shown_where_the_published_value_is_for_the_settings(tmp_path: Path) -> None:
    before, tuned = {"cifar10-0.1 fedavg before": {0: 50.0, 1: 60.0}}, {"cifar10-0.1 fedavg ccvr": {0: 61.0, 1: 63.0}}
    enter(tmp_path, "ccvr/table2", before, {"rounds": 40})
    enter(tmp_path, "ccvr/table2", before, {"partition": "dirichlet(0.1, moon)"})  # a variant's
    enter(tmp_path, "ccvr/table2", tuned, {"stage.ccvr.tukey": "none"})  # another one's
    enter(tmp_path, "ccvr/table2", tuned, {"stage.ccvr.tukey": "none", "lr": 0.02})
    union = {"dataset": "emnist-letters-union"}
    enter(tmp_path, "fedclassavg/table4", {"emnist CA": {0: 80.0, 1: 91.0}}, union)  # and one of other data
    enter(tmp_path, "fedclassavg/table4", {"emnist CA": {0: 80.0, 1: 91.0}}, {"dataset": "emnist-letters", "lr": 0.02})
    enter(tmp_path, "fedclassavg/table4", {"emnist CA": {0: 80.0, 1: 91.0}}, {"dataset": "cifar10"})
    text = results_page.write(tmp_path).read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.partition("## Other settings")[2].splitlines()[4:-2]]
    assert {row[2].strip("`"): (row[-2], row[-1].strip(" |")) for row in rows} == {
        "rounds=40": ("", ""),
        "partition=dirichlet(0.1, moon)": ("**-3.55**", "yes"),
        "stage.ccvr.tukey=none": ("-0.68", "yes"),
        "stage.ccvr.tukey=none lr=0.02": ("", ""),
        "dataset=emnist-letters-union": ("**-6.00**", "no"),
        "dataset=emnist-letters lr=0.02": ("", ""),
        "dataset=cifar10": ("", ""),
    }
    assert [row[5] for row in rows] == ["58.55 ± 0.98"] * 2 + ["62.68 ± 0.54"] * 2 + ["91.50"] * 3  # beside each


def test_a_value_that_only_a_variant_agrees_with_is_counted_apart(tmp_path: Path) -> None:
    pattern = r"(\d+) are within 2 points \(bytes: 2 %\), (\d+) more with a variant"
    cell = {"emnist CA": {0: 91.0}}  # published: 91.50
    enter(tmp_path, "fedclassavg/table4", {"emnist CA": {0: 80.0}})
    enter(tmp_path, "fedclassavg/table4", cell, {"lr": 0.02})  # no variant
    assert count(tmp_path, pattern) == ["0", "0"]
    enter(tmp_path, "fedclassavg/table4", cell, {"dataset": "emnist-letters-union"})
    assert count(tmp_path, pattern) == ["0", "1"]


@pytest.mark.slow
def test_a_readme_of_the_users_own_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enter(tmp_path, "ccvr/table2", {"cifar10-0.5 fedavg before": {0: 68.7}})
    for own in (b"# Results\n\nOf our own.\n", b"", b"\xff\xfe"):
        (tmp_path / "README.md").write_bytes(own)
        assert call(["reproduce", "--summary", "--results", str(tmp_path)]) == 2
        assert "README.md is not a page of results, so it is not overwritten: move it away" in capsys.readouterr().err
        assert (tmp_path / "README.md").read_bytes() == own
        assert not (tmp_path / "figure.svg").exists()
    (tmp_path / "README.md").unlink()
    for _ in range(2):  # over its own page
        assert call(["reproduce", "--summary", "--results", str(tmp_path)]) == 0


def test_notes_that_are_no_text_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enter(tmp_path, "ccvr/table2", {"cifar10-0.5 fedavg before": {0: 68.7}})
    (tmp_path / "notes.md").write_bytes(b"Gr\xf6\xdfer\n")
    assert call(["reproduce", "--summary", "--results", str(tmp_path)]) == 2
    assert "notes.md can't be read: 'utf-8' codec can't decode byte 0xf6" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "close"),
    [
        ({0: 59.9}, True),  # 1.35 above 58.55 ± 0.98: within two errors of 1.13, its deviation standing for ours
        ({0: 56.0}, False),  # more than 2 points
        ({0: 59.9, 1: 60.0, 2: 60.1}, False),  # within 2 points, but both deviations are small
        ({0: 58.0, 1: 60.0, 2: 62.0}, True),
    ],
)
def test_close_is_within_two_points_and_two_standard_errors(
    tmp_path: Path, values: dict[int, float], close: bool
) -> None:
    enter(tmp_path, "ccvr/table2", {"cifar10-0.1 fedavg before": values})
    (line,) = results_page.lines(tables.load("ccvr/table2"), Results(tmp_path))
    assert line.close is close


def test_a_cell_without_a_deviation_over_seeds_is_within_two_points_but_not_close(tmp_path: Path) -> None:
    enter(tmp_path, "fedclassavg/table4", {"emnist CA": {0: 91.5}})  # published: 91.50, without a deviation
    (line,) = results_page.lines(tables.load("fedclassavg/table4"), Results(tmp_path))
    assert line.within_points
    assert not line.close


@pytest.mark.parametrize("options", [["--scale", "small"], ["--cells", "x"], ["--shard", "1/2"], ["--dry-run"]])
def test_options_of_runs_are_refused_where_nothing_runs(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["reproduce", *options]) == 2
    assert "name a table" in capsys.readouterr().err
    assert call(["reproduce", "--summary", "--results", str(tmp_path), *options]) == 2
    assert "give it --results alone" in capsys.readouterr().err
