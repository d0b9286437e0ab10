"""Tables of trials as a report reads them: any key may be searched, and what is no such table is said in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedhead.core.system.errors import BadInput
from fedhead.recipes.search_space import Dimension
from fedhead.report import style
from fedhead.report.compare.study_trials import read_study
from fedhead.report.figures.plots import accuracy_by_bytes
from fedhead.report.page import content, page
from fedhead.studies.tune.trials import TrialRecord, to_csv

HEADER = "trial,state,value,trained_rounds,seconds,lr,reason\n"
GOOD = "0,complete,50,2,1.0,0.1,\n1,complete,51,2,1.0,0.2,\n"
ODD = {
    "empty": (b"", "can't be read as a table of trials (EmptyDataError: No columns"),
    "another-table": (b"trial,value\n0,1\n", "can't be read as a table of trials (KeyError: "),
    "no-value": (
        (HEADER + GOOD + "2,complete,,2,1.0,0.3,\n").encode(),
        "can't be read as a table of trials (ValueError",
    ),
    "long-row": (
        (HEADER + GOOD + "2,complete,5,2,1,1,,9\n").encode(),
        "can't be read as a table of trials (ParserError",
    ),
    "number": ((HEADER + GOOD + "x,complete,50,2,1.0,1,\n").encode(), "can't be read as a table of trials (ValueError"),
    "not-utf-8": (b"\xff\xfe" + HEADER.encode(), "can't be read as a table of trials (UnicodeDecodeError: "),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tables_are_refused_with_their_path(tmp_path: Path, name: str) -> None:
    data, said = ODD[name]
    (tmp_path / "trials.csv").write_bytes(data)
    where = re.escape(str(tmp_path / "trials.csv"))
    with pytest.raises(BadInput, match=f"^{where}[, ]{{1,2}}{re.escape(said)}[^\n]*$"):
        read_study(tmp_path)


def test_odd_tables_are_notes_of_the_report(tmp_path: Path) -> None:
    for name, data in {"good": (HEADER + GOOD).encode(), **{name: data for name, (data, _) in ODD.items()}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "trials.csv").write_bytes(data)
    made = page.page(content.load([tmp_path])).html()
    assert "lr=0.2" in made
    for name in ODD:
        assert str(tmp_path / name / "trials.csv") in made.replace("<wbr>", "")


def test_texts_of_trials_are_no_formulas() -> None:
    failed = TrialRecord(0, "failed", None, 0, 1.0, {"method": "@mine", "lr": -1.0}, "=1+1")
    space = [Dimension("method", "choice", ("@mine", "fedavg")), Dimension("lr", "choice", (-1.0, 1.0))]
    assert to_csv([failed], space).splitlines()[1].endswith(",'@mine,-1.0,'=1+1")


def test_the_number_of_rounds_can_be_searched(tmp_path: Path) -> None:
    trials = [TrialRecord(n, "complete", 50.0 + n, 7, 1.0, {"rounds": 2 + n}) for n in range(3)]
    (tmp_path / "trials.csv").write_text(to_csv(trials, [Dimension("rounds", "int", (2, 4))]))
    found = read_study(tmp_path)
    assert found.keys == ["rounds"]
    assert found.best["rounds"] == "4"
    assert set(found.table["trained_rounds"]) == {"7"}
    assert "rounds=4" in page.page(content.load([tmp_path])).html()


def test_logarithmic_axes_have_plain_numbers(tmp_path: Path) -> None:
    figure = accuracy_by_bytes([("ncm", 5e4, 80.0), ("qda", 6e7, 88.0)])
    style.save(figure, tmp_path / "figure.svg")  # which sets the ticks
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert "1000" in labels, labels
    assert all(float(label) > 0 for label in labels if label), labels
