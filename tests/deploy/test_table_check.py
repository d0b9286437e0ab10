"""`fedhead deploy check`: a site sees mistakes in its table before any server does."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from clinic_sites import project

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.deploy.project import Project


def test_a_good_table_is_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = project(tmp_path)
    assert call(["deploy", "check", str(made.path)]) == 0
    told = capsys.readouterr().out
    assert "north: 40 rows, 30 of them to train on" in told
    assert "east: 40 rows" in told
    assert not list(made.path.rglob("state"))  # nothing is kept: the first run draws the test rows


def test_a_bad_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = project(tmp_path)
    site, path = str(made.path / "sites" / "south"), tmp_path / "south.csv"
    good = pd.read_csv(path)
    strange = good.assign(sex=["M", *good["sex"][1:]])
    for table, reason in (
        (good.drop(columns="ward"), "site south: "),
        (strange, "south.csv: column 'sex' holds 'M' in line 2, which the schema does not list: correct it, or"),
        (good.assign(age=-3), "column 'age' holds -3 in line 2, it must be between 0 and 120 in years"),
        (good[:0], "south.csv' holds no samples: give at least one"),
        (good.assign(outcome=[None, *good["outcome"][1:]]), "column 'outcome' holds nan in line 2, it must be a label"),
        (good.assign(age="old"), "column 'age' holds 'old' in line 2, it must be a number in years"),
        (
            good.assign(outcome=["lost", *good["outcome"][1:]]),
            "column 'outcome' holds 'lost' in line 2, which the schema",
        ),
    ):
        table.to_csv(path, index=False)
        assert call(["deploy", "check", site]) == 1
        assert reason in capsys.readouterr().out
    good.assign(outcome="dead").to_csv(path, index=False)
    assert call(["deploy", "check", site]) == 0  # a site may lack a class
    good.to_csv(path, index=False)
    file = Path(site) / "site.yaml"
    assert 'data: "../../../south.csv"' in file.read_text()  # so that the folder may be moved with the data
    strange.to_csv(tmp_path / "test.csv", index=False)
    file.write_text(file.read_text().replace("client_test: 0.25", "test: ../../../test.csv"))
    assert call(["deploy", "check", site]) == 1  # its test table too
    assert "holds 'M' in line 2" in capsys.readouterr().out
    file.write_text(file.read_text().replace("schema: schema.yaml", "schema: null"))
    assert call(["deploy", "check", site]) == 1
    assert "names no schema: only tables are checked before a run" in capsys.readouterr().out


def test_all_faults_of_a_site_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = project(tmp_path)
    path, site = tmp_path / "south.csv", made.path / "sites" / "south"
    good = pd.read_csv(path)
    good.assign(sex="M").to_csv(tmp_path / "test.csv", index=False)
    bad = good.drop(columns="year").assign(age=-3, sex=["M", *good["sex"][1:]], outcome=["lost", *good["outcome"][1:]])
    bad.rename(columns={"ward": "wards"}).to_csv(path, index=False)
    text = (site / "site.yaml").read_text().replace("client_test: 0.25", "test: ../../../test.csv")
    (site / "site.yaml").write_text(text.replace("leave_out: [patient]", "leave_out: [patient, nurse]"))
    assert call(["deploy", "check", str(site)]) == 1
    told = capsys.readouterr()
    reasons = [
        "south.csv has no column 'year', 'ward'; it has patient,",
        "south.csv: wards is not in the schema: drop it",
        "south.csv: column 'age' holds -3 in line 2",
        "south.csv: column 'sex' holds 'M' in line 2",
        "south.csv: column 'outcome' holds 'lost' in line 2",
        "unknown column in leave_out 'nurse'",
        "test.csv: column 'sex' holds 'M' in line 2",
    ]
    lines = told.out.splitlines()
    assert len(lines) == len(reasons)
    for reason in reasons:
        assert sum(line.startswith("site south: ") and reason in line for line in lines) == 1
    assert told.err == "error: south: correct the files named above, and check again\n"


def test_small_categories_and_folders_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = project(tmp_path)
    good = pd.read_csv(tmp_path / "south.csv")
    (tmp_path / "visits").mkdir()
    good[:20].to_csv(tmp_path / "visits" / "2024.csv", index=False)
    good[20:].assign(ward=["attic", *good["ward"][21:]]).to_csv(tmp_path / "visits" / "2025.csv", index=False)
    file = made.path / "sites" / "south" / "site.yaml"
    text = file.read_text().replace("south.csv", "visits").replace("min_class_count: 1", "min_class_count: 2")
    file.write_text(text)
    assert call(["deploy", "check", str(file.parent)]) == 0
    told = capsys.readouterr().out
    assert "south: 40 rows" in told
    assert "attic 1 (not named: fewer than 2)" in told


def test_misspelled_columns_to_leave_out_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = project(tmp_path)
    file = made.path / "sites" / "south" / "site.yaml"
    text = file.read_text()
    for names, reason in (
        ("[patient, wrad]", "unknown column in leave_out 'wrad': did you mean 'ward'?"),
        ("[patient, outcome]", "leave_out: 'outcome' is the label, which every row needs: remove it"),
    ):
        file.write_text(text.replace("leave_out: [patient]", f"leave_out: {names}"))
        assert call(["deploy", "check", str(file.parent)]) == 1
        assert reason in capsys.readouterr().out
    pd.read_csv(tmp_path / "south.csv").drop(columns="year").to_csv(tmp_path / "south.csv", index=False)
    file.write_text(text.replace("leave_out: [patient]", "leave_out: [patient, year]"))
    assert call(["deploy", "check", str(file.parent)]) == 0


def test_all_sites_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = project(tmp_path)
    pd.read_csv(tmp_path / "south.csv").drop(columns="ward").to_csv(tmp_path / "south.csv", index=False)
    file = made.path / "sites" / "north" / "site.yaml"
    file.write_text(file.read_text().replace("name: north", "name: east"))
    assert call(["deploy", "check", str(made.path)]) == 1
    told = capsys.readouterr()
    assert "has the name 'east': each site needs its own, as in server.yaml" in told.out
    assert "south.csv has no column 'ward'" in told.out
    assert "east: 40 rows" in told.out
    assert "error: north, south: correct the files named above" in told.err


def test_a_site_s_name_is_checked_before_the_folder_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"sites: .*va long beach.* letters, digits"):
        Project.init(tmp_path / "clinic", "digits", ["va long beach"])
    assert not (tmp_path / "clinic").exists()


def test_places_of_faults_and_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow", reason="an optional extra")
    made, _ = project(tmp_path)
    file = made.path / "sites" / "south" / "site.yaml"
    text, good = file.read_text(), pd.read_csv(tmp_path / "south.csv")
    bad = good.assign(sex=[*good["sex"][:7], "M", *good["sex"][8:]])
    bad.to_csv(tmp_path / "south.csv", index=False)
    bad.to_parquet(tmp_path / "south.parquet")
    for name, reason in (("south.csv", "holds 'M' in line 9,"), ("south.parquet", "holds 'M' in row 8,")):
        file.write_text(text.replace("south.csv", name))
        assert call(["deploy", "check", str(file.parent)]) == 1
        assert reason in capsys.readouterr().out
    file.write_text(text.replace("south.csv", "gone"))
    assert call(["deploy", "check", str(file.parent)]) == 1
    (told,) = capsys.readouterr().out.splitlines()  # no fault that only the tables could show
    assert told.endswith("gone is not there: correct the path, or put the table there")


def test_other_separators_and_encodings_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = project(tmp_path)
    path = tmp_path / "south.csv"
    good = pd.read_csv(path)
    for keys, reason in (
        ({"sep": ";"}, "south.csv is not separated by commas"),
        ({"sep": "\t"}, "south.csv is not separated by commas"),
        ({"encoding": "latin-1"}, "south.csv is not in UTF-8: save it in this encoding"),
    ):
        good.assign(ward="chirurgie-général").to_csv(path, index=False, **keys)  # type: ignore[call-overload]
        assert call(["deploy", "check", str(made.path / "sites" / "south")]) == 1
        assert reason in capsys.readouterr().out
