"""Tables of trials as a report reads them: any key may be searched, and what is no such table is said in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.recipes.search_space import Dimension
from fedhead.report import style
from fedhead.report.compare.study_trials import Trials, read
from fedhead.report.figures import tuning_plots
from fedhead.report.figures.plots import accuracy_by_bytes
from fedhead.report.page import content, page
from fedhead.studies.tune.trials import TrialRecord, to_csv

HEADER = "trial,state,value,trained_rounds,seconds,lr,reason\n"
GOOD = "0,complete,50,2,1.0,0.1,\n1,complete,51,2,1.0,0.2,\n"
ODD = {
    "empty": (b"", "line 1: no column trial, state, value, trained_rounds, seconds, reason: it is not a table"),
    "another-table": (b"trial,value\n0,1\n", "line 1: no column state, trained_rounds, seconds, reason"),
    "column-twice": (HEADER.replace("lr", "lr,lr").encode(), "line 1: there are several columns 'lr'"),
    "nothing-searched": (
        b"trial,state,value,trained_rounds,seconds,reason\n0,complete,50,2,1.0,\n1,complete,51,2,1.0,\n",
        "line 1: no column of a key that was searched",
    ),
    "no-value": ((HEADER + GOOD + "2,complete,,2,1.0,0.3,\n").encode(), "line 4: value: '' is not a finite number"),
    "nan-value": ((HEADER + GOOD + "2,complete,nan,2,1.0,0.3,\n").encode(), "line 4: value: 'nan' is not a finite"),
    "short-row": ((HEADER + GOOD + "2,complete,50\n").encode(), "line 4: the header has 7 columns, the row has 3"),
    "long-row": (
        (HEADER + GOOD + "2,complete,5,2,1,1,,9\n").encode(),
        "line 4: the header has 7 columns, the row",
    ),
    "infinite": ((HEADER + GOOD + "2,complete,50,2,1.0,inf,\n").encode(), "line 4: lr: 'inf' is not a finite number"),
    "too-large": ((HEADER + GOOD + "2,complete,50,2,1.0,1e300,\n").encode(), "line 4: lr: '1e300' is not a finite"),
    "number": ((HEADER + GOOD + "x,complete,50,2,1.0,1,\n").encode(), "line 4: trial: 'x' is not a whole number"),
    "state": (
        (HEADER + GOOD + "2,done,50,2,1.0,1,\n").encode(),
        "line 4: state: 'done' is not one of complete",
    ),
    "not-utf-8": (b"\xff\xfe" + HEADER.encode(), "can't be read as a table of trials ('utf-8' codec"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tables_are_refused_with_path_and_line(tmp_path: Path, name: str) -> None:
    data, said = ODD[name]
    (tmp_path / "trials.csv").write_bytes(data)
    where = re.escape(str(tmp_path / "trials.csv"))
    with pytest.raises(BadInput, match=f"^{where}[, ]{{1,2}}{re.escape(said)}[^\n]*$"):
        read(tmp_path)


def test_odd_tables_are_notes_of_the_report(tmp_path: Path) -> None:
    for name, data in {"good": (HEADER + GOOD).encode(), **{name: data for name, (data, _) in ODD.items()}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "trials.csv").write_bytes(data)
    made = page.page(content.load([tmp_path])).html()
    assert "lr=0.2" in made
    for name in ODD:
        assert str(tmp_path / name / "trials.csv") in made


def test_a_study_of_the_number_of_rounds_is_drawn(tmp_path: Path) -> None:
    trials = [TrialRecord(n, "complete", 50.0 + n, 7, 1.0, {"rounds": 2 + n}) for n in range(3)]
    (tmp_path / "trials.csv").write_text(to_csv(trials, [Dimension("rounds", "int", (2, 4))]))
    found = read(tmp_path)
    assert found.keys == ("rounds",)
    assert found.column("rounds")[0].tolist() == [2, 3, 4]
    assert {row["trained_rounds"] for row in found.rows} == {"7"}
    assert "rounds=4" in page.page(content.load([tmp_path])).html()


def test_show_refuses_an_odd_table_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trials.csv").write_bytes(ODD["nothing-searched"][0])
    assert call(["tune", "--show", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "no column of a key that was searched" in error
    assert error.count("\n") == 1


def drawn(folder: Path) -> Trials:
    rows = ["trial,state,value,trained_rounds,seconds,lr,method,reason"]
    rows += [f"{n},complete,{50 + n},2,1.0,{10.0**-n},{('fedavg', 'fedprox')[n % 2]}," for n in range(4)]
    (folder / "trials.csv").write_text("\n".join(rows) + "\n")
    return read(folder)


def test_axes_are_marked_with_what_was_searched(tmp_path: Path) -> None:
    trials = drawn(tmp_path)
    lr, method, value = trials.marks()
    assert lr == [(0.0, "0.001"), (1.0, "1")]
    assert method == [(0.0, "fedavg"), (1.0, "fedprox")]
    assert value == [(0.0, "50"), (1.0, "53")]
    (axes,) = tuning_plots.parallel_coordinates(trials).axes
    assert {mark.get_text() for mark in axes.texts} == {"0.001", "1", "fedavg", "fedprox", "50", "53"}


def test_one_value_of_a_key_is_marked_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "trials.csv").write_text(HEADER + "0,complete,50,2,1.0,0.1,\n1,complete,51,2,1.0,0.1,\n")
    assert read(tmp_path).marks()[0] == [(0.5, "0.1")]


def test_logarithmic_axes_have_plain_numbers(tmp_path: Path) -> None:
    figures = [tuning_plots.slices(drawn(tmp_path)), accuracy_by_bytes([("ncm", 5e4, 80.0), ("qda", 6e7, 88.0)])]
    for figure, wanted in zip(figures, ["0.01", "1000"], strict=True):
        style.save(figure, tmp_path / "figure.svg")  # which sets the ticks
        labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
        assert wanted in labels, labels
        assert all(float(label) > 0 for label in labels if label), labels
