"""A table's results from results written by hand."""

from __future__ import annotations

import csv
import errno
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from fedhead.cli import call
from fedhead.cli.output import resumable
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.system.failures import raise_if_fatal
from fedhead.engine.experiment.compute import Compute
from fedhead.papers.tables import reproduce, run_cells, table_result
from fedhead.papers.tables.paper_tables import load as table
from fedhead.papers.tables.paper_tables import names, parse
from fedhead.papers.tables.published import published
from fedhead.papers.tables.results import Measurement, value_at
from fedhead.recipes.recipe import load

CELL = replace(
    next(c for name in names() for c in table(name).cells() if c.stage is None and published(c)),
    value="accuracy",
    deviation="seeds",
)
RECIPE = load("digits", ["clients=30"])
CPU = Compute(device="cpu")


def row(value: float | None, deviation: float | None = None, seed: int = 0) -> Measurement:
    """A row of results with this result, and nothing else of interest."""
    empty = {f.name: None if "None" in str(f.type) else "" for f in fields(Measurement)}
    return Measurement(**empty | {"value": value, "client_deviation": deviation, "seed": seed, "split": 0})  # type: ignore[arg-type]


def test_a_result_is_the_mean_of_the_seeds_that_have_it() -> None:
    rows = [row(40.0), row(None), row(50.0)]
    expected = published(CELL)
    assert expected is not None
    found = table_result.cell_result(CELL, rows)
    assert (found.values, found.mean, found.published) == ([40.0, None, 50.0], 45.0, expected[0])
    assert found.deviation == pytest.approx(50**0.5)  # of a sample: n - 1
    assert found.difference == pytest.approx(45.0 - expected[0])
    assert table_result.cell_result(CELL, rows, comparable=False).difference is None
    one = table_result.cell_result(CELL, rows[:1])
    assert (one.mean, one.deviation) == (40.0, None)
    none = table_result.cell_result(CELL, rows[1:2])
    assert (none.mean, none.deviation, none.difference) == (None, None, None)
    assert table_result.cell_result(CELL, []).mean is None


def test_a_deviation_over_clients_is_the_mean_of_the_runs_own() -> None:
    rows = [row(7.0, 1.0), row(9.0), row(8.0, 2.0)]
    found = table_result.cell_result(replace(CELL, deviation="clients"), rows)
    assert (found.mean, found.deviation) == (8.0, 1.5)


def test_a_result_deep_in_the_result() -> None:
    assert value_at({"client_bytes": {"up": 7}}, "client_bytes.up") == 7.0
    assert value_at({"client_bytes": 3}, "client_bytes.up") is None
    assert value_at({}, "accuracy") is None


def test_seeds_of_a_training_lie_side_by_side_and_other_trainings_elsewhere(tmp_path: Path) -> None:
    one, seed, other = (run_cells.folder(tmp_path, RECIPE.override(w)) for w in ([], ["seed=1"], ["lr=0.5"]))
    assert one.parent == seed.parent != other.parent
    assert (one.name, seed.name) == ("seed-0", "seed-1")


def test_no_seeds_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--seeds: 0 is out of range, it must be at least 1"):
        reproduce.reproduce(table("ccvr/table1"), tmp_path / "out", seeds=0, compute=CPU)
    assert not (tmp_path / "out").exists()


def test_the_csv_has_a_row_per_cell_rounded_for_reading(tmp_path: Path) -> None:
    result = table_result.cell_result(CELL, [row(100 / 3)], comparable=False)
    whole = table_result.TableResult("t", "T", "small", [0], [0], False, list(CELL.choices), [result])
    table_result.write(tmp_path, whole)
    with (tmp_path / "table.csv").open() as file:
        (found,) = csv.DictReader(file)
    assert (found["ours"], found["runs"], found["difference"], found["scale"]) == ("33.3333", "1", "", "small")
    kept = json.loads((tmp_path / "table.json").read_text())
    assert kept["cells"][0]["mean"] == 100 / 3  # in full


TWO = """
# Two cells, the second of which can't be run
paper: ccvr
table: 2
seeds: {full: 1, small: 1}
base: {dataset: digits, clients: 3, rounds: 1}
axes:
  data:
    mild: {set: {partition: dirichlet(0.5)}, find: {dataset: cifar10, partition: dirichlet(0.5)}}
  method:
    fedavg: {set: {method: fedavg}, find: {method: fedavg, stage: none}}
    fedprox: {set: {method: fedprox, method.mu: -1}, find: {method: fedprox, stage: none}}
"""


def test_a_cell_that_can_not_be_run_is_named_before_any_is(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(BadInput, match="mild fedprox: "):
        reproduce.reproduce(parse("paper/two", TWO.lstrip()), tmp_path / "out", compute=CPU, log=said.append)
    assert not said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", list(names()))
def test_small_tables_name_the_data_that_they_run_on(name: str) -> None:
    for cell in table(name).cells("small"):
        data = cell.keys.get("dataset", "digits")
        assert cell.find.get("dataset", data) == data or f"{data}-for-" in cell.name
    assert all("-for-" not in cell.name for cell in table(name).cells("full"))


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (
            "cifar10-0.1 fedavg before,cifar10-0.1 moonn",
            "unknown cell of ccvr/table2 'cifar10-0.1 moonn': did you mean",
        ),
        ("nosuch", "unknown cell of ccvr/table2 'nosuch'. See fedhead reproduce ccvr/table2 --dry-run\n"),
        (" , ", "error: --cells ' , ': there is no text between the commas"),
    ],
)
def test_each_text_of_cells_has_to_pick_some(cells: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["reproduce", "ccvr/table2", "--dry-run", "--cells", cells]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("variants", ["extra-epoch,caption-cnn", "caption-cnn,extra-epoch"])
def test_every_variant_of_a_cell_is_checked_before_any_runs(variants: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--cells", "cifar10 20-clients fedavg", "--variants", variants, "model.stem=3x3", "--dry-run"]
    assert call(["reproduce", "fedclassavg/table3", *words]) == 2
    assert "unknown parameter of model fedavgcnn 'stem'" in capsys.readouterr().err


def test_a_full_disk_is_reported_with_the_file() -> None:
    error = BadInput("r/results.csv can't be written: No space left on device")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(FedheadError, match=r"r/results\.csv can't be written: .*; the same command"), resumable():
        raise error


def test_after_an_error_of_the_gpu_no_other_run_is_taken() -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"):
        raise_if_fatal(RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ..."))
    raise_if_fatal(RuntimeError("CUDA error: out of memory"))
    raise_if_fatal(ValueError("a run's own"))
