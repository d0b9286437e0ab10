"""Tables with a schema: what is read, refused and fitted, from sums as from the pooled table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from clinics import SCHEMA, clinic, write_clinics

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.data.inputs.missing_values import MissingValues
from fedhead.data.inputs.table_columns import TableColumns
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.data.inputs.table_statistics import FittedTable, Preprocessing, TableStatistics
from fedhead.data.inputs.table_sums import feature_sums, from_numbers, histogram, to_numbers

SCHEMA_OF_CLINICS = TableSchema.from_mapping(yaml.safe_load(SCHEMA))
STANDARD = Preprocessing(True, "standard")


def frames() -> list[pd.DataFrame]:
    return [SCHEMA_OF_CLINICS.table(clinic(k), leave_out=["patient"]) for k in range(3)]


def statistics(wanted: Preprocessing = STANDARD, **settings: Any) -> list[TableStatistics]:
    return [TableStatistics.of(t, np.arange(len(t)), SCHEMA_OF_CLINICS, wanted, **settings) for t in frames()]


def test_a_schema_survives_its_json_and_names_what_is_wrong() -> None:
    assert TableSchema.from_mapping(SCHEMA_OF_CLINICS.to_json()) == SCHEMA_OF_CLINICS
    codes = TableSchema.from_mapping({"label": "y", "classes": [0, 1], "columns": {"a": None}})
    assert codes.classes == ("0", "1")
    assert TableSchema.from_mapping({"label": "y", "classes": [0.0, "1.0"], "columns": {"a": None}}) == codes
    for change, reason in (
        ({"columns": {}}, "columns: name at least one column"),
        ({"columns": {"outcome": None}}, "columns: 'outcome' is the label"),
        ({"columns": {"a": {"kind": "number"}}}, "columns: a: unknown key 'kind'"),
        ({"columns": {"a": {"type": "word"}}}, "columns: a: type"),
        ({"columns": {"a": {"categories": ["x"]}}}, "categories are for the type category"),
        ({"columns": {"a": {"type": "category", "range": [0, 1]}}}, "range and unit are for the type number"),
        ({"columns": {"a": {"range": [1, 1]}}}, "range: the first number must be below the second"),
        ({"columns": {"a": {"type": "category", "categories": ["x", "x"]}}}, "each once"),
        ({"labels": "y"}, "unknown key 'labels'"),
    ):
        with pytest.raises(BadInput, match=reason):
            TableSchema.from_mapping({"label": "outcome", "columns": {"a": None}, **change})


def test_csv_and_parquet_files_are_the_same_table(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="an optional extra")
    table = clinic(0).assign(ward=np.where(clinic(0)["ward"].isna(), np.nan, clinic(0)["year"] % 3))  # codes
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_parquet(tmp_path / "a.parquet")
    read = [SCHEMA_OF_CLINICS.table(tmp_path / f"a.{end}", leave_out=["patient"]) for end in ("csv", "parquet")]
    assert set(read[1]["ward"].dropna()) == {"0", "1", "2"}  # the CSV file has 0.0, 1.0, 2.0
    for name in ("age", "year", "sex", "ward", "outcome"):
        pd.testing.assert_series_equal(read[0][name], read[1][name], check_index=False)
    both = SCHEMA_OF_CLINICS.table([tmp_path / "a.csv", tmp_path / "a.parquet"], leave_out=["patient"])
    assert len(both) == 80


def test_new_tables_are_encoded_by_the_schema_as_those_of_training(caplog: pytest.LogCaptureFixture) -> None:
    entries = {
        "label": "y",
        "columns": {"age": {"range": [0, 120]}, "grade": {"type": "category"}, "stage": {"type": "category"}},
    }
    schema = TableSchema.from_mapping(entries)
    train = {"age": [61, 48], "grade": [1, 2], "stage": ["0.0", "II"], "y": ["ill", "well"]}
    columns = schema.encoding([schema.categories(schema.table(pd.DataFrame(train)))], missing=True)
    assert columns.names == ("age", "grade=1", "grade=2", "stage=0", "stage=II")
    rows = pd.DataFrame({"age": ["50", None], "grade": [2, 1.0], "stage": [0, "II"]})
    np.testing.assert_array_equal(columns.encode(rows), [[50, 0, 1, 1, 0], [np.nan, 1, 0, 0, 1]])
    assert columns.encode(rows.astype({"grade": "category"}))[:, 1].tolist() == [0, 1]
    np.testing.assert_array_equal(columns.encode(rows[["grade"]]), [[np.nan, 0, 1, 0, 0], [np.nan, 1, 0, 0, 0]])
    assert "has no column 'age': its cells count as empty" in caplog.text
    assert "has no column 'stage': its cells count as empty" in caplog.text
    for change, reason in (
        ({"age": 121}, "column 'age' holds 121 in row 0, it must be between 0 and 120"),
        ({"grade": 3}, "column 'grade' holds 3 in row 0, .* list all categories in the schema"),
    ):
        with pytest.raises(BadInput, match=reason):
            columns.encode(rows.assign(**change))
    full = schema.encoding([schema.categories(schema.table(pd.DataFrame(train)))], missing=False)
    with pytest.raises(BadInput, match="the table has no column 'age'"):
        full.encode(rows[["grade", "stage"]])
    assert TableColumns.from_json(columns.to_json()) == columns


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"age": ["old"] * 40}, r"column 'age' holds 'old' in row 0, it must be a number in years"),
        ({"age": [np.inf] * 40}, "column 'age' holds inf in row 0, it must be a number"),
        ({"age": [600.0] * 40}, "column 'age' holds 600.0 in row 0, it must be between 0 and 120 in years"),
        ({"weight": [1.0] * 40}, "columns that are not in the schema, weight: drop them, or list them in leave_out"),
        ({"ward": None}, "has no column 'ward'; it has patient"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_the_column(change: dict[str, Any], reason: str) -> None:
    table = clinic(0).assign(**change)
    if change.get("ward", "") is None:
        table = table.drop(columns="ward")
    with pytest.raises(BadInput, match=reason):
        SCHEMA_OF_CLINICS.table(table, leave_out=["patient"])


def test_a_column_that_is_left_out_counts_as_empty() -> None:
    table = SCHEMA_OF_CLINICS.table(clinic(0), leave_out=["patient", "ward", "year"])
    assert table["ward"].isna().all()
    assert SCHEMA_OF_CLINICS.categories(table)["ward"] == [None]


def test_sums_of_clients_are_those_of_the_pooled_table() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(2020, 1, (5000, 3)).astype(np.float32))
    x[::7, 1] = torch.nan
    pooled, values = feature_sums(x), x.double().numpy()
    parts = [[from_numbers(to_numbers(f)) for f in feature_sums(part)] for part in (x[:17], x[17:3000], x[3000:])]
    for k, feature in enumerate(pooled):
        total = parts[0][k] + parts[1][k] + parts[2][k]
        assert total.mean == feature.mean == pytest.approx(np.nanmean(values[:, k]), abs=1e-10)
        assert total.deviation == pytest.approx(np.nanstd(values[:, k]), abs=1e-10)


@pytest.mark.parametrize("normalize", ["standard", "quantiles", None])
def test_fitting_to_statistics_equals_preprocessing_of_the_pooled_table(normalize: str | None) -> None:
    wanted = Preprocessing(True, normalize)
    read = [TableStatistics.read(part.__dict__, SCHEMA_OF_CLINICS) for part in statistics(wanted)]
    fitted = FittedTable.fit(SCHEMA_OF_CLINICS, read, wanted)
    made = fh.Federation.from_clients(
        {str(k): table.drop(columns="patient") for k, table in enumerate(map(clinic, range(3)))},
        schema=SCHEMA_OF_CLINICS,
        missing="mean",
        normalize=normalize,
    )
    assert fitted.columns == made.columns
    assert made.columns.names[2:] == ("sex=f", "sex=m", "sex=x", "ward=a", "ward=b", "ward=c", "ward missing")
    assert fitted.missing == made.missing[""] == MissingValues(made.missing[""].mean, (0, 1))
    assert fitted.classes == made.class_names == ("alive", "dead")
    mean, deviation = fitted.transform.mean, fitted.transform.std
    np.testing.assert_allclose(mean, made.transform.mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(deviation, made.transform.std, rtol=0, atol=1e-10)
    pooled = pd.concat(frames())
    assert made.missing[""].mean[0] == pytest.approx(pooled["age"].astype("float32").astype(float).mean(), abs=1e-10)
    if normalize == "standard":
        x = made.train.x.double().numpy()
        scaled = [0, 1, 9, 10]  # numbers and their indicators; categories stay 0 and 1
        np.testing.assert_allclose(np.array(mean)[scaled], x.mean(0)[scaled], rtol=0, atol=1e-10)
        np.testing.assert_allclose(np.array(deviation)[scaled], x.std(0)[scaled], rtol=0, atol=1e-10)
        assert (mean[2:9], deviation[2:9]) == ((0.0,) * 7, (1.0,) * 7)
    if normalize == "quantiles":
        low, high = pooled["age"].quantile([0.05, 0.95])
        assert (mean[0] - deviation[0], mean[0] + deviation[0]) == pytest.approx((low, high), abs=2 * 120 / 256)
        scaled = made.transform(made.train.x)
        assert torch.equal(scaled[:, 2:], made.train.x[:, 2:])  # categories and indicators stay 0 and 1


def test_only_what_is_asked_for_is_told() -> None:
    silent = statistics(Preprocessing(True, None))[0]
    assert all(numbers[3:] == (0.0, 0.0) for numbers in silent.sums.values())  # no squares
    assert (silent.histograms, silent.classes) == ({}, ())
    assert silent.categories == {"sex": (), "ward": ("a", "b", "c", None)}
    full = SCHEMA_OF_CLINICS.table(clinic(0).ffill().bfill(), leave_out=["patient"])
    nothing = TableStatistics.of(full, np.arange(40), SCHEMA_OF_CLINICS, Preprocessing(False, None))
    assert nothing.sums == {}


def test_few_rows_are_not_told() -> None:
    change = {"ward": ["z", *clinic(0)["ward"][1:]], "sex": ["x", *clinic(0)["sex"][1:]]}
    table = SCHEMA_OF_CLINICS.table(clinic(0).assign(**change), leave_out=["patient"])
    few = TableStatistics.of(table, np.arange(40), SCHEMA_OF_CLINICS, STANDARD, minimum=2)
    assert few.categories == {"sex": (), "ward": ("a", "b", "c", None)}
    assert few.sums.keys() == {"age", "year"}
    table["year"] = [2020.0, *[np.nan] * 39]
    with pytest.raises(BadInput, match="column 'year' has values in 1 rows, fewer than min_class_count 2"):
        TableStatistics.of(table, np.arange(40), SCHEMA_OF_CLINICS, STANDARD, minimum=2)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 0},
        {"categories": {}},
        {"categories": {"sex": [], "ward": ["a" * 300]}},
        {"categories": {"sex": [], "ward": ["\x1b[31m"]}},
        {"sums": {"age": [99, 1.0, 0.0, 1.0, 0.0]}},
        {"sums": {"age": [9, float("nan"), 0.0, 1.0, 0.0]}},
        {"histograms": {"age": [1]}},
        {"more": 1},
    ],
)
def test_odd_statistics_are_refused(change: dict[str, Any]) -> None:
    good = statistics()[0].__dict__
    assert TableStatistics.read(good, SCHEMA_OF_CLINICS) == statistics()[0]
    with pytest.raises(BadInput):
        TableStatistics.read({**good, **change}, SCHEMA_OF_CLINICS)


def test_a_federation_of_files_is_left_out_client_by_client(tmp_path: Path) -> None:
    files = write_clinics(tmp_path)
    for path in files.values():
        pd.read_csv(path).drop(columns="patient").to_csv(path, index=False)
    settings = {"schema": tmp_path / "schema.yaml", "missing": "mean", "normalize": "quantiles"}
    made = fh.Federation.from_clients(files, **settings)
    plain = fh.Federation.from_clients(files, **{**settings, "leave_out": ["age"]})
    assert not plain.train.x[:, 0].any()  # the column is empty, and filled with 0
    with pytest.raises(BadInput, match="leave_out: it is for tables with a schema"):
        fh.Federation.from_clients(files, leave_out=["age"])
    rest = fh.Federation.from_clients({name: files[name] for name in ("north", "south")}, **settings)
    assert made.leave_out(2).transform == rest.transform
    assert made.with_validation(0.2).leave_out(2).transform == rest.transform
    with pytest.raises(BadInput, match="quantiles needs the range of 'a'"):
        fh.Federation.from_clients(
            [pd.DataFrame({"a": [1.0, 2.0], "y": ["u", "v"]})],
            schema=TableSchema.from_mapping({"label": "y", "columns": {"a": None}}),
            normalize="quantiles",
        )
    with pytest.raises(BadInput, match="schema: it names the label"):
        fh.Federation.from_clients(files, label="outcome", schema=tmp_path / "schema.yaml")


def test_a_histogram_counts_values_that_float32_rounds_beyond_a_limit() -> None:
    values = torch.tensor([0.3] * 3 + [0.1] * 2 + [float("nan")])  # the first are above 0.3 by 1e-8
    assert (values[0].double() > 0.3, sum(histogram(values, (0, 0.3)))) == (True, 5)
