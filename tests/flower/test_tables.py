"""Tables at sites: the schema, the preprocessing in one exchange, and the whole run, equal to a simulation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from clinic_sites import project
from clinics import NAMES, SCHEMA, clinic
from tiers import quick

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.tree.treefile import load_tree
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.flower import factory
from fedhead.flower.server_run import serve
from fedhead.flower.site.client_handler import respond
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import Request, to_json
from fedhead.flower.wire.site_errors import TEXTS, SiteProblem
from fedhead.testing.inprocess import InProcess


def simulated(folder: Path, normalize: str | None, **more: Any) -> fh.Result:
    frames = {name: clinic(k).drop(columns="patient") for k, name in enumerate(NAMES)}
    made = fh.Federation.from_clients(
        frames, client_test=0.25, schema=folder / "schema.yaml", missing="mean", normalize=normalize
    )
    settings = {"rounds": 2, "batch_size": 8, "lr": 0.1, "executor": "loop", "device": "cpu", **more}
    return fh.run(made, "mlp(hidden=[6])", "fedavg", out=folder / "sim", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("normalize", quick(["standard", "quantiles"], "standard"))
def test_a_deployment_equals_a_simulation_of_the_same_tables(normalize: str, tmp_path: Path) -> None:
    made, grid = project(tmp_path, f"normalize={normalize}")
    said: list[str] = []
    found = serve(made.server(), grid, log=said.append)
    expected = simulated(tmp_path, normalize)
    for name in NAMES:
        assert sum(f"site {name} is here" in line for line in said) == 1
    assert "tables of north, south, east with 90 rows: 11 features" in said
    run = made.path / "run"
    inputs, other = (json.loads((path / "environment.json").read_text())["inputs"] for path in (run, tmp_path / "sim"))
    for name in ("mean", "std"):
        np.testing.assert_allclose(inputs[name], other[name], rtol=0, atol=1e-10)
    np.testing.assert_allclose(inputs["missing"][""]["mean"], other["missing"][""]["mean"], rtol=0, atol=1e-10)
    assert inputs["missing"][""]["indicated"] == other["missing"][""]["indicated"] == [0, 1]
    assert inputs == {**other, "mean": inputs["mean"], "std": inputs["std"], "missing": inputs["missing"]}
    assert found["personal"] == pytest.approx(expected.personal, abs=1e-10)
    mine, theirs = (
        load_tree(path / "checkpoint.safetensors")[0]["server"].leaves() for path in (run, tmp_path / "sim")
    )
    for name, t in theirs.items():
        torch.testing.assert_close(mine[name], t, atol=1e-10, rtol=0)


@pytest.mark.slow
def test_models_of_tables_are_selected_as_in_a_simulation(tmp_path: Path) -> None:
    """Preprocessing, validation, early stopping, the best model and a stage."""
    chosen = "callbacks=[early_stopping(metric=loss, patience=2), best_model(metric=auroc(bins=64), min_delta=0.02)]"
    words = ("rounds=9", "lr=0.8", "validation=0.25", "metrics=['auroc(bins=64)', f1]", "stages=[finetune]", chosen)
    made, _ = project(tmp_path, *words)
    for file in made.sites().values():
        file.path.write_text(file.path.read_text() + "validation: 0.25\n")
    grid = InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})
    serve(made.server(), grid, log=lambda line: None)
    found, expected = (
        fh.load(made.path / "run"),
        simulated(
            tmp_path,
            "standard",
            rounds=9,
            lr=0.8,
            validation=0.25,
            metrics=["auroc(bins=64)", "f1"],
            stages=["finetune"],
            callbacks=[fh.EarlyStopping("loss", patience=2), fh.BestModel("auroc(bins=64)", min_delta=0.02)],
        ),
    )
    with pytest.raises(BadInput, match="stage: finetune makes personal models only, and these are at their sites"):
        found.export(tmp_path / "tuned.pt2", stage="finetune")
    assert found.best_round == expected.best_round
    assert (found.best_round or 0) < len(found.rows) == len(expected.rows) < 9
    for mine, theirs in zip(found.rows, expected.rows, strict=True):
        # The simulation tests all samples in one batch, so a float32 loss may differ in its last digit.
        assert mine["validation"]["loss"] == pytest.approx(theirs["validation"]["loss"], abs=1e-8)
        assert mine["validation"] | {"loss": 0} == pytest.approx(theirs["validation"] | {"loss": 0}, abs=1e-10)
    for mine, theirs in ((found, expected), (found.stages["finetune"], expected.stages["finetune"])):
        assert mine.personal == pytest.approx(theirs.personal, abs=1e-10)
    assert found.weights is not None
    assert expected.weights is not None
    for name, t in expected.weights.items():
        torch.testing.assert_close(found.weights[name], t, atol=1e-10, rtol=0)


@pytest.mark.slow
def test_a_deployed_table_is_exported(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="an optional extra")
    pytest.importorskip("onnxscript", reason="an optional extra")
    made, grid = project(tmp_path)
    serve(made.server(), grid, log=lambda line: None)
    loaded, rows = fh.load(made.path / "run"), clinic(7)
    rows["ward"] = rows["ward"].replace("c", "a")
    session = onnxruntime.InferenceSession(str(loaded.export(tmp_path / "model.onnx", normalize=True)))
    columns = loaded.trained.clients.federation.columns
    assert columns is not None
    (scores,) = session.run(None, {"x": columns.encode(rows)})
    np.testing.assert_allclose(scores, loaded.scores(rows), atol=1e-5)
    held = session.get_modelmeta().custom_metadata_map
    assert json.loads(held["columns"]) == list(columns.names)
    assert held["run"] == json.loads((made.path / "run" / "environment.json").read_text())["experiment"]


def test_a_deployed_table_is_loaded_and_compared(tmp_path: Path) -> None:
    made, grid = project(tmp_path)
    serve(made.server(), grid, log=lambda line: None)
    run = made.path / "run"
    loaded, rows = fh.load(run), clinic(7)
    rows["ward"] = rows["ward"].replace("c", "a")
    named = np.array(["alive", "dead"])[loaded.predict(rows)]
    assert loaded.evaluate(rows, rows["outcome"])["accuracy"] == pytest.approx(100 * (named == rows["outcome"]).mean())
    empty = loaded.predict(rows.assign(ward=None, year=np.nan))
    np.testing.assert_array_equal(loaded.predict(rows.drop(columns=["ward", "year"])), empty)
    with pytest.raises(BadInput, match="x: column 'age' holds 121 in row 0, it must be between 0 and 120"):
        loaded.predict(rows.assign(age=121))
    assert json.loads((run / "environment.json").read_text())["table_schema"]["columns"]["age"]["unit"] == "years"
    again, same_grid = project(tmp_path / "again", "method=fedprox")
    serve(again.server(), same_grid, log=lambda line: None)
    table = fh.compare([run, again.path / "run"]).table
    assert len(table) == 2  # deployed runs of the same sites are compared
    assert call(["compare", str(run), str(again.path / "run")]) == 0
    assert call(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert "clinic" in (tmp_path / "report.html").read_text()


def test_a_resumed_run_asks_for_no_statistics_again(tmp_path: Path) -> None:
    made, grid = project(tmp_path, "rounds=1")
    serve(made.server(), grid, log=lambda line: None)
    kinds = [json.loads(line)["kind"] for line in (made.path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert kinds.count("statistics") == 3
    made.server_file.write_text(made.server_file.read_text().replace("rounds=1", "rounds=2"))
    serve(made.server(), grid, resume=True, log=lambda line: None)
    again = [json.loads(line)["kind"] for line in (made.path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert again.count("statistics") == 3
    made.server_file.write_text(made.server_file.read_text().replace("rounds=2", "rounds=3"))
    (made.path / "schema.yaml").write_text(SCHEMA.replace("years", "months"))
    with pytest.raises(BadInput, match="another schema"):
        serve(made.server(), grid, resume=True, log=lambda line: None)


def no_ward(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns="ward")


def one_more(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(Methuselah=969)


def old(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(age="Methuselah")


def lost(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(outcome=["lost", *table["outcome"][1:]])


def strange(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(sex=["Methuselah", *table["sex"][1:]])


def negative(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(age=-3)


def unlabelled(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(outcome=["alive", None, *table["outcome"][2:]])


def rare(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(ward=["Methuselah", *table["ward"][1:]])


BAD = {
    no_ward: "south.csv has no column 'ward'",
    one_more: "south.csv has columns that are not in the schema, Methuselah: drop them, or list them in leave_out",
    old: "column 'age' holds 'Methuselah' in line 2, it must be a number in years",
    lost: "column 'outcome' holds 'lost' in line 2, which the schema does not list",
    strange: "column 'sex' holds 'Methuselah' in line 2, which the schema does not list",
    rare: "column 'ward' holds 'Methuselah' in line 2, which is not a category of the run: list all categories in",
    negative: "column 'age' holds -3 in line 2, it must be between 0 and 120 in years",
    unlabelled: "column 'outcome' holds nan in line 3, it must be a label: fill the cell, or drop the row",
}


@pytest.mark.parametrize("change", quick(BAD, rare, old))
def test_a_bad_table_is_named_at_its_site_alone(
    change: Callable[[pd.DataFrame], pd.DataFrame], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, grid = project(tmp_path, "rounds=1")
    path = tmp_path / "south.csv"
    change(pd.read_csv(path)).to_csv(path, index=False)
    file = made.path / "sites" / "south" / "site.yaml"
    file.write_text(file.read_text().replace("min_class_count: 1\n", "min_class_count: 2\n"))
    grid.nodes[11] = factory.site(made.sites()["south"])
    replies, said = list[str](), list[str]()
    grid.faults[11] = lambda message, honest: (content := honest(), replies.append(str(wire.unpack(content))))[0]
    row = serve(made.server(), grid, log=said.append)
    assert row["clients"][1] is None
    assert BAD[change] in capsys.readouterr().err
    told = "\n".join([*replies, *said])
    assert TEXTS["data"] in told
    for word in (BAD[change], "Methuselah", "'lost'", "south.csv"):
        assert word not in told


def test_a_label_of_one_site_is_announced(tmp_path: Path) -> None:
    made, grid = project(tmp_path, "rounds=1")
    table, said = pd.read_csv(tmp_path / "south.csv"), list[str]()
    table.assign(outcome=["lost", *table["outcome"][1:]]).to_csv(tmp_path / "south.csv", index=False)
    for path in made.path.rglob("schema.yaml"):
        path.write_text(SCHEMA.replace("classes: [alive, dead]\n", ""))
    serve(made.server(), grid, log=said.append)
    assert "classes, with the number of sites that name each: alive 3, dead 3, lost 1" in said


def test_a_run_that_no_site_joins_says_what_to_do(tmp_path: Path) -> None:
    made, grid = project(tmp_path)
    for file in made.sites().values():
        file.path.write_text(file.path.read_text() + "methods: [fedprox]\n")
    grid.nodes = {10 + k: factory.site(file) for k, file in enumerate(made.sites().values())}
    with pytest.raises(FedheadError, match=r"0 of 3 sites are there .* own log\); correct these sites, then resume$"):
        serve(made.server(), grid, log=lambda line: None)
    with pytest.raises(FedheadError, match=r"0 of 3 sites are there .*; missing: north, south, east$"):
        serve(replace(made.server(), out="other"), InProcess({}), log=lambda line: None)


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "found"])
def test_a_site_whose_rows_are_all_of_one_class_trains(listed: bool, tmp_path: Path) -> None:
    made, grid = project(tmp_path, "rounds=1")
    for path in made.path.rglob("schema.yaml"):
        path.write_text(SCHEMA if listed else SCHEMA.replace("classes: [alive, dead]\n", ""))
    pd.read_csv(tmp_path / "south.csv").assign(outcome="dead").to_csv(tmp_path / "south.csv", index=False)
    assert all(accuracy is not None for accuracy in serve(made.server(), grid, log=lambda line: None)["clients"])
    assert fh.load(made.path / "run").record.class_names == ("alive", "dead")


def test_a_site_accepts_one_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, grid = project(tmp_path)
    for name, text in (("north", SCHEMA.replace("years", "months")), ("south", SCHEMA.replace("f, m, x", "f, m"))):
        (made.path / "sites" / name / "schema.yaml").write_text(text)
    file = made.path / "sites" / "east" / "site.yaml"
    file.write_text(file.read_text().replace("schema: schema.yaml", "schema: null"))
    grid.nodes[12] = factory.site(made.sites()["east"])
    with pytest.raises(FedheadError, match=r"0 of 3 sites are there .*has not accepted the run's schema"):
        serve(made.server(), grid, log=lambda line: None)
    told = capsys.readouterr().err
    assert "differs from schema.yaml in the column 'age'" in told
    assert "differs from schema.yaml in the column 'sex'" in told
    assert "site.yaml names no schema of tables" in told


def test_a_site_accepts_only_encodings_of_its_schema(tmp_path: Path) -> None:
    """Numbers as categories would be one feature per value, whose statistics are whole rows."""
    made, _ = project(tmp_path)
    spec, site = factory.run_spec(made.server()), made.sites()["north"]
    schema = TableSchema.from_mapping(yaml.safe_load(SCHEMA))
    fitted = schema.encoding([{name: ["a", "b"] for name in schema.columns}], missing=True).to_json()
    site.check_schema(replace(spec, table={**spec.table, "columns": fitted}))
    numbers = next(name for name, column in schema.columns.items() if column.type == "number")
    for changed in (
        {**fitted, "categories": {**fitted["categories"], numbers: ["1", "2"]}},
        {**fitted, "categories": dict(reversed(fitted["categories"].items()))},
        {**fitted, "categories": {**fitted["categories"], "sex": ["f"]}},
    ):
        with pytest.raises(SiteProblem, match="encodes other columns or categories"):
            site.check_schema(replace(spec, table={**spec.table, "columns": changed}))


def test_statistics_of_a_table_are_a_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, grid = project(tmp_path, "rounds=1")
    file = made.path / "sites" / "south" / "site.yaml"
    file.write_text(file.read_text() + "max_releases: 0\n")
    grid.nodes[11] = factory.site(made.sites()["south"])
    assert serve(made.server(), grid, log=lambda line: None)["clients"][1] is not None  # it needs no sums to train
    assert "'max_releases' in site.yaml permits 0" in capsys.readouterr().err


def test_a_site_with_a_budget_sends_no_statistics_of_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, _ = project(tmp_path, "missing=null", "normalize=null", "rounds=1", "privacy=[sample_dp(delta=1e-3)]")
    site = factory.site(replace(made.sites()["south"], max_epsilon=2.0))
    asked = Request("statistics", factory.run_spec(made.server()), 60.0)
    header, _ = wire.unpack(respond(wire.pack(to_json(asked), {}), site, watchdog=False))
    assert (header["problem"], header["statistics"]) == ("policy", {})
    assert "statistics of a table are sent without noise, also in a run with privacy" in capsys.readouterr().err


def test_a_table_with_too_few_rows_for_its_statistics_does_not_train(tmp_path: Path) -> None:
    made, _ = project(tmp_path, "rounds=1")
    pd.read_csv(tmp_path / "south.csv")[:4].to_csv(tmp_path / "south.csv", index=False)
    file = made.path / "sites" / "south" / "site.yaml"
    file.write_text(file.read_text().replace("min_class_count: 1\n", "min_class_count: 5\n"))
    grid = InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})
    said: list[str] = []
    assert serve(made.server(), grid, log=said.append)["clients"][1] is None
    assert not any("site south is here" in line for line in said)
    (row,) = fh.load(made.path / "run").rows
    assert TEXTS["data"] in row["absent"]["south"]


@pytest.mark.parametrize("word", ["missing=mean", "normalize=standard", "normalize=quantiles"])
def test_privacy_and_statistics_of_tables_are_refused_before_a_site_sends_any(word: str, tmp_path: Path) -> None:
    made, grid = project(tmp_path, "missing=null", "normalize=null", "rounds=0", "stages=[ridge]")
    spec = factory.run_spec(made.server())
    with pytest.raises(BadInput, match=r"privacy: normalize .* compute means of these samples without noise"):
        project(tmp_path / "again", "missing=null", "normalize=null", "privacy=[dp(epsilon=1)]", word)
    assert not (tmp_path / "again" / "clinic").exists()
    key, value = word.split("=")
    asked = Request("statistics", replace(spec, recipe={**spec.recipe, "privacy": ["dp"], key: value}), 60.0)
    header, _ = wire.unpack(respond(wire.pack(to_json(asked), {}), grid.nodes[11], watchdog=False))
    assert (header["problem"], header["statistics"]) == ("setup", {})


def test_what_is_not_done_with_tables_is_refused(tmp_path: Path) -> None:
    made, _ = project(tmp_path)
    text = made.server_file.read_text()
    for word, reason in (
        ("augment=flip", "augment: flip is not done with the sites' own data"),
        ("encode=bytes(9)", "encode: .* is not done"),
    ):
        made.server_file.write_text(text.replace("rounds=2", word))
        with pytest.raises(BadInput, match=reason):
            made.server().recipe_of_run()
    made.server_file.write_text(text + "classes: 2\n")
    with pytest.raises(BadInput, match="schema: it describes the samples; leave classes and shape out"):
        made.server()
