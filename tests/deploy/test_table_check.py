"""`fedhead deploy check`: a site sees mistakes in its table before any server does."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from clinic_sites import project
from clinics import NAMES

from fedhead.cli import call
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.deploy.project import Project
from fedhead.deploy.table_check import refusals
from fedhead.flower.server_run import serve


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
        "south.csv has columns that are not in the schema, wards: drop them",
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
    note = "column 'ward' has fewer than 2 rows of attic: a run refuses this site, unless another site has 2 of each"
    assert told.splitlines()[-1].startswith(f"site south: {note}; list the values in the schema")


def test_categories_that_the_schema_lists_may_be_rare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = project(tmp_path)
    table = pd.read_csv(tmp_path / "south.csv")
    table.assign(sex=["x", *table["sex"][1:]]).to_csv(tmp_path / "south.csv", index=False)
    file = made.path / "sites" / "south" / "site.yaml"
    file.write_text(file.read_text().replace("min_class_count: 1", "min_class_count: 2"))
    assert call(["deploy", "check", str(file.parent)]) == 0
    told = capsys.readouterr().out
    assert "x 1" in told
    assert "fewer than" not in told


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


def test_a_stage_that_the_sites_refuse_is_named_by_init_and_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, _ = project(tmp_path)
    (tmp_path / "mine.yaml").write_text("model: mlp(hidden=[16])\nstages: [ccvr]\nmissing: mean\nvalidation: 0.2\n")
    words = ["--recipe", str(tmp_path / "mine.yaml"), "--schema", str(tmp_path / "schema.yaml")]
    words += [word for name in NAMES for word in ("--site", name, "--data", str(tmp_path / f"{name}.csv"))]
    assert call(["deploy", "init", str(tmp_path / "other"), *words]) == 0
    told = capsys.readouterr().out
    wide = "stage ccvr: the model has 16 features and a sample 4 values, so its statistics may reveal samples: use a "
    assert told.count(f"The sites refuse this run so far: {wide}") == 1  # once, not by site
    assert told.count("The sites refuse this run so far: the recipe's validation is 0.2, this site's is None") == 1
    made.server_file.write_text(made.server_file.read_text().replace('"rounds=2"', '"rounds=2", "stages=[ccvr]"'))
    assert call(["deploy", "check", str(made.path)]) == 1
    told = capsys.readouterr().out
    assert told.count(wide.replace("16", "6")) == 3
    assert told.count("or set allow_wide_features: true in site.yaml") == 3
    for file in made.sites().values():
        file.path.write_text(file.path.read_text() + "allow_wide_features: true\n")
    assert call(["deploy", "check", str(made.path)]) == 0
    south = made.path / "sites" / "south"
    (south / "site.yaml").write_text((south / "site.yaml").read_text() + "methods: [fedprox]\nstages: [ridge]\n")
    (south / "schema.yaml").write_text((south / "schema.yaml").read_text().replace("years", "months"))
    assert call(["deploy", "check", str(made.path)]) == 1
    told = capsys.readouterr().out
    assert told.count("site south: the method 'fedavg' is not among 'methods' in site.yaml: fedprox") == 1
    assert told.count("site south: the server's schema differs from schema.yaml in the column 'age'") == 1
    assert call(["deploy", "check", str(south)]) == 0  # the run is not known there


@pytest.mark.parametrize("hidden", ["[]", "[6, 4]", "[6, 3]"])
def test_the_width_of_a_model_is_known_without_its_inputs(hidden: str, tmp_path: Path) -> None:
    """The check knows no categories, and decides as the sites do, which know them."""
    made, grid = project(tmp_path, f"model=mlp(hidden={hidden})", "stages=[ridge]", "rounds=1")
    errors, said = refusals(made.sites()["north"], made.server()), list[str]()
    with suppress(FedheadError):
        serve(made.server(), grid, log=said.append)
    assert (errors == []) == any(line.startswith("finished") for line in said) == (hidden == "[6, 3]")


def test_empty_cells_are_refused_as_the_recipe_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = project(tmp_path, "missing=null", "normalize=null")
    assert call(["deploy", "check", str(made.path / "sites" / "south")]) == 0
    assert call(["deploy", "check", str(made.path)]) == 1
    assert "site south: the table: column 'ward' has no value in" in capsys.readouterr().out


def test_labels_of_a_regression_are_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = project(tmp_path, "objective=regression")
    site = made.path / "sites" / "south"
    for path in (made.path / "schema.yaml", site / "schema.yaml"):
        path.write_text("label: year\ncolumns: {age: {}, ward: {type: category}}\n")
    text = (site / "site.yaml").read_text().replace("[patient]", "[patient, sex, outcome]")
    (site / "site.yaml").write_text(text.replace("min_class_count: 1", "min_class_count: 5"))
    for name in ("north", "east"):
        (made.path / "sites" / name / "site.yaml").unlink()
    assert call(["deploy", "check", str(made.path)]) == 0
    told = capsys.readouterr().out
    assert "2011 … 2024" in told
    assert "fewer than" not in told
    assert call(["deploy", "check", str(site)]) == 0  # the objective is not known there
    told = capsys.readouterr().out
    assert "column 'year' has fewer than 5 rows of 20" in told
    assert "a run with objective=multiclass refuses this site" in told


def test_paths_in_messages_are_resolved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = project(tmp_path)
    (tmp_path / "blob").write_text((tmp_path / "south.csv").read_text().replace("ward", "wards"))
    (tmp_path / "south.csv").unlink()
    (tmp_path / "south.csv").symlink_to("blob")  # a link has its own suffix
    assert call(["deploy", "check", str(made.path / "sites" / "south")]) == 1
    assert f"site south: {tmp_path / 'south.csv'} has no column 'ward'" in capsys.readouterr().out


def test_the_comment_on_data_is_that_of_its_form(tmp_path: Path) -> None:
    made, _ = project(tmp_path)
    assert "# a table (.csv, .parquet), a list or a folder of them, or" in (
        made.path / "sites" / "south" / "site.yaml"
    ).read_text(encoding="utf-8")
    plain = Project.init(tmp_path / "plain", "digits", ["north"])
    assert "# a folder of class folders" in (plain.path / "sites" / "north" / "site.yaml").read_text(encoding="utf-8")


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
