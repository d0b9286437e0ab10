"""Comparisons by the named axes of a sweep."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput

SWEEP = """
recipe: digits
seeds: 2
base: {rounds: 1, subset: 100, clients: 2, model: "mlp(hidden=[4])"}
axes:
  method: [fedavg, fedprox]
  data:
    mild: {set: {partition: dirichlet(5.0)}}
    hard: {set: {partition: dirichlet(0.5), local_epochs: 2}}
  mean:
    low: {set: {lr: 0.01, momentum: 0.9}}
    high: {set: {lr: 0.1, momentum: 0.5}}
  kind:
    plain: {}
    ended: {stage: ridge}
"""


def swept(place: Path, text: str) -> Path:
    """The folder of a sweep that was run."""
    (place / "grid.yaml").write_text(text)
    assert call(["sweep", str(place / "grid.yaml"), "--out", str(place / "grid"), "--executor", "loop"]) == 0
    return place / "grid"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("axes"), SWEEP)


def test_a_named_axis_makes_the_columns_and_its_choices_are_the_labels(grid: Path) -> None:
    found = fh.compare(grid, by="data")
    assert list(found.table.columns) == ["mild", "hard"]  # as the sweep's file has them
    assert {m.partition("(")[0].strip() for m in found.table.index} >= {"fedavg", "fedprox"}
    by_key = fh.compare(grid, by="partition")
    assert found.table["mild"].tolist() == by_key.table["dirichlet(5.0)"].tolist()
    assert not any("local_epochs" in note or "partition" in note for note in found.notes)


def test_two_axes_and_a_key(grid: Path) -> None:
    assert list(fh.compare(grid, by=["mean", "data"]).table.columns) == [
        "low, mild",
        "low, hard",
        "high, mild",
        "high, hard",
    ]
    # what decides the data is a column as well, unless an axis decides it
    assert fh.compare(grid, by=["mean"]).table.columns[0] == "low, dirichlet(0.5)"


def test_results_of_python_and_single_cells_have_the_axes_too(grid: Path) -> None:
    assert list(fh.compare(fh.load_all(grid), by="data").table.columns) == ["mild", "hard"]
    some = sorted((grid / "runs").glob("fedavg*mild*/seed-*"))
    assert list(fh.compare(some, by="data").table.columns) == ["mild"]


def test_the_command_and_an_axis_that_is_called_as_a_result(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["compare", str(grid), "--by", "mean", "--by", "data", "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {(row["axis mean"], row["data"]) for row in rows} == {
        (a, b) for a in ("low", "high") for b in ("mild", "hard")
    }
    assert all(float(row["mean"]) >= 0 for row in rows)


def test_what_is_no_axis_is_refused_with_what_there_is(grid: Path, tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"named axis of the runs' sweep, 'dta': did you mean 'data'\? Known: .*, kind, "
    ):
        fh.compare(grid, by="dta")
    with pytest.raises(BadInput, match=r"^by kind: its choices are methods and stages, which are the rows"):
        fh.compare(grid, by="kind")
    assert call(["run", "digits", "rounds=1", "subset=100", "--out", str(tmp_path / "alone"), "--quiet"]) == 0
    with pytest.raises(BadInput, match=r"^unknown key 'data'"):
        fh.compare(tmp_path / "alone", by="data")
    with pytest.raises(
        BadInput, match=r"^by data: .* is of a sweep with this axis, .*alone is not; compare the runs of"
    ):
        fh.compare([grid, tmp_path / "alone"], by="data")


def test_one_label_of_two_sweeps_does_not_mix_their_data(grid: Path, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(SWEEP.replace("dirichlet(5.0)", "dirichlet(8.0)"))
    words = ["--out", str(tmp_path / "other"), "--executor", "loop", "--seeds", "1"]
    assert call(["sweep", str(tmp_path / "grid.yaml"), *words]) == 0
    columns = list(fh.compare([grid, tmp_path / "other"], by="data").table.columns)
    assert columns == ["mild, dirichlet(5.0)", "mild, dirichlet(8.0)", "hard, dirichlet(0.5)"]


# -- axes that are called as a recipe's key -----------------------------------------------------------
LIKE_KEYS = """
recipe: digits
base: {rounds: 1, subset: 100, model: "mlp(hidden=[4])"}
axes:
  method: [fedavg, fedprox]
  clients:
    small: {set: {clients: 2}}
    big: {set: {clients: 4, local_epochs: 2}}
  partition:
    mild: {set: {partition: dirichlet(5.0)}}
    hard: {set: {partition: dirichlet(0.5)}}
  lr: [0.1, 0.01]
"""


@pytest.fixture(scope="module")
def like_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("like-keys"), LIKE_KEYS)


def test_an_axis_that_is_called_as_a_key_has_its_choices_as_labels(like_keys: Path) -> None:
    found = fh.compare(like_keys, by=["clients", "partition"])
    assert set(found.table.columns) == {"small, mild", "small, hard", "big, mild", "big, hard"}
    assert not any("local_epochs" in note for note in found.notes)
    assert {record["axis partition"] for record in found.results.to_dict("records")} == {"mild", "hard"}
    # what decides the data, and is not chosen by the axis, is still a column
    assert set(fh.compare(like_keys, by="partition").table.columns) == {
        f"{partition}, clients={clients}" for partition in ("mild", "hard") for clients in (2, 4)
    }


def test_an_axis_of_a_keys_own_values_is_that_key(like_keys: Path) -> None:
    assert {column.partition(",")[0] for column in fh.compare(like_keys, by="lr").table.columns} == {
        "lr=0.1",
        "lr=0.01",
    }


def test_runs_without_the_axis_are_compared_by_the_key(like_keys: Path, tmp_path: Path) -> None:
    words = ["rounds=1", "subset=100", "clients=2", "partition=iid", "model=mlp(hidden=[4])"]
    assert call(["run", "digits", *words, "--out", str(tmp_path / "alone"), "--quiet"]) == 0
    found = fh.compare([like_keys, tmp_path / "alone"], by="partition")
    assert "iid, clients=2" in found.table.columns
    assert "dirichlet(5.0), clients=2" in found.table.columns
    assert any(note.startswith("not all runs are of a sweep with the named axis partition:") for note in found.notes)


def test_a_baseline_of_other_settings_is_named_where_one_of_the_same_is_there(grid: Path, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(SWEEP.replace("rounds: 1", "rounds: 2"))
    words = ["--out", str(tmp_path / "longer"), "--executor", "loop"]
    assert call(["sweep", str(tmp_path / "grid.yaml"), *words]) == 0
    plain = [str(one) for place in (grid, tmp_path / "longer") for one in place.glob("runs/*low-plain")]
    found = fh.compare(plain, by="data")
    assert "fedprox (rounds=2)" in found.table.index
    said = (
        "fedprox (rounds=2): compared with fedavg (rounds=1), which differs in rounds as well, although there is fedavg"
    )
    assert any(note.startswith(said) for note in found.notes)
    asked = fh.compare(plain, by="data", baseline="fedavg (rounds=1)")
    for other in (asked, fh.compare(plain, by=["data", "rounds"]), fh.compare(plain[:2], by="data")):
        assert not any("compared with" in note for note in other.notes)
