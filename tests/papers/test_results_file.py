"""The file of measured results: damaged, with other headers, and written by two processes at once."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedhead.core.system.errors import BadInput
from fedhead.papers.tables.results import FILE, Measurement, Results

ROW = Measurement(
    *("ccvr/table2", "one", "", "abc", "full", 0, 0, "accuracy", 61.5, "none", 61.5, 60.0, None, None),
    *(1, 2, 3.0, None, 1, "loop", "fp32", "cpu", "0.1.0", "", "2026-01-01"),
)
ADDS = """
import dataclasses, sys
from pathlib import Path
from test_results_file import ROW
from fedhead.papers.tables.results import Results
own = Results(Path(sys.argv[1]))
print("ready", flush=True)
input()
for seed in range(40):
    own.add(dataclasses.replace(ROW, cell=sys.argv[2], digest=sys.argv[2], seed=seed))
"""


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / FILE).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_file_that_a_spreadsheet_has_written_is_read_and_continued(quote: str, tmp_path: Path) -> None:
    Results(tmp_path).add(ROW)
    header, _, row = (tmp_path / FILE).read_text().partition("\n")
    header = ",".join(f"{quote}{name}{quote}" for name in header.split(","))
    (tmp_path / FILE).write_text(f"\ufeff{header}\r\n{row[:-1]}\r\n", encoding="utf-8", newline="")
    found, other = Results(tmp_path), replace(ROW, seed=1)
    assert list(found) == [ROW]
    found.add(other)
    assert list(Results(tmp_path)) == [ROW, other]


def test_a_row_goes_to_the_file_that_a_link_names(tmp_path: Path) -> None:
    (tmp_path / "shared.csv").touch()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / FILE).symlink_to(tmp_path / "shared.csv")
    Results(tmp_path / "linked").add(ROW)
    assert (tmp_path / "linked" / FILE).is_symlink()
    assert ROW.digest in (tmp_path / "shared.csv").read_text()


def test_only_tables_of_reproduce_are_not_read_as_results(tmp_path: Path) -> None:
    Results(tmp_path).add(ROW)
    (tmp_path / FILE).rename(tmp_path / "table2-gpu1.csv")
    for name in ("table.csv", "table-tukey-none.csv"):
        (tmp_path / name).write_text("data,method,scale\n")
    assert list(Results(tmp_path)) == [ROW]


def test_a_file_that_a_killed_process_left_empty_holds_no_rows(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    found = Results(tmp_path)
    assert not list(found)
    found.add(ROW)
    assert list(Results(tmp_path)) == [ROW]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("table,cell", "table,cel", "is no file of results: its first line has table,cel,overrides"),
        ("value,stage", "value,stage,value", "is no file of results"),
        ("61.5,none", "nan,none", "line 2, column value: 'nan' is not a number; correct it, or remove the line"),
        ("61.5,none", "sixty,none", "line 2, column value: 'sixty' is not a number"),
        ("61.5,none", ",none", "line 2, column value: '' is not a number"),
        ("full,0,0", "full,0,1.5", "line 2, column seed: '1.5' is not a whole number; correct it, or remove"),
        ("full,0,0", "full,,0", "line 2, column split: '' is not a whole number"),
        ("1,2,3.0", "1,2,inf", "line 2, column training_seconds: 'inf' is not a number;"),
        (",0.1.0,,2026-01-01", "", "line 2: it has 22 of 25 columns; correct it, or remove the line"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, before: str, after: str, said: str) -> None:
    Results(tmp_path).add(ROW)
    text = (tmp_path / FILE).read_text()
    assert before in text
    (tmp_path / FILE).write_text(text.replace(before, after, 1))
    with pytest.raises(BadInput, match=said):
        Results(tmp_path)


def test_a_row_without_a_value_is_named_and_not_entered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = Results(tmp_path)
    found.add(replace(ROW, value=None))
    assert "ccvr/table2, one: seed 0 on split 0 has no accuracy: no result" in caplog.text
    assert not list(found)
    found.add(replace(ROW, metric="bytes per client and round", value=22528.0))  # no accuracy
    assert [row.value for row in Results(tmp_path)] == [22528.0]


@pytest.mark.slow
def test_two_processes_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    start = f"import sys; sys.path.insert(0, {here!r})\n{ADDS}"
    words = [sys.executable, "-c", start, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    both = [subprocess.Popen([*words, name], **pipes, text=True) for name in ("one", "two")]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.close()
    assert [process.wait(120) for process in both] == [0, 0]
    assert len(rows(tmp_path)) == len(list(Results(tmp_path))) == 80


def test_a_row_that_another_process_has_entered_meanwhile_is_not_entered_again(tmp_path: Path) -> None:
    one, other = Results(tmp_path), Results(tmp_path)
    one.add(ROW)
    other.add(ROW)
    assert len((tmp_path / FILE).read_text().splitlines()) == 2  # the header, and it
