"""Tables by name: every cell finds its published value, small ones run to their end, killed ones go on."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.paper_tables import parse
from fedhead.papers.tables.published import published, published_rows
from fedhead.papers.tables.reproduce import reproduce
from fedhead.papers.tables.run_cells import folder
from fedhead.recipes import experiment as build
from fedhead.runs.run_folder import RunFolder

CCVR = [name for name in tables.names() if name.startswith("ccvr/")]

TINY = """
# A tiny table
paper: ccvr
table: 2
seeds: {full: 3, small: 2}
base: {dataset: digits, subset: 120, clients: 3, rounds: 2, lr: 0.05, model: mlp, model.hidden: [8]}
axes:
  data:
    mild: {set: {partition: dirichlet(0.5)}, find: {dataset: cifar10, partition: dirichlet(0.5)}}
    hard: {set: {partition: dirichlet(0.1)}, find: {dataset: cifar10, partition: dirichlet(0.1)}}
  method:
    fedavg: {set: {method: fedavg}, find: {method: fedavg}}
    fedprox: {set: {method: fedprox}, find: {method: fedprox}}
  stage:
    before: {find: {stage: none}}
    few: {stage: ccvr, set: {stage.ccvr.samples: 5}, find: {stage: ccvr}}
    many: {stage: ccvr, set: {stage.ccvr.samples: 50}, find: {stage: ccvr}}
rules:
  - {when: {data: hard, method: fedprox}, set: {method.mu: 0.5}}
skip: [{data: mild, stage: many}]
small: {rounds: 1, stage.ccvr.epochs: 1}
"""


def test_the_papers_tables_are_all_there() -> None:
    expected = ["ccvr/figure7", *(f"ccvr/table{n}" for n in range(1, 6))]
    assert expected == CCVR


@pytest.mark.parametrize("name", CCVR)
def test_every_cell_is_sound_and_has_its_published_value(name: str) -> None:
    table = tables.load(name)
    cells = table.cells()
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        assert published(cell) is not None, cell.name
    for scale in ("full", "small"):
        checked = set()
        for cell in table.cells(scale):  # type: ignore[arg-type]  # a literal from the list
            key = (json.dumps(dict(cell.keys), sort_keys=True), cell.stage, json.dumps(dict(cell.parameters)))
            if key not in checked:
                checked.add(key)
                keys = {**cell.keys, "stages": [cell.stage] if cell.stage else []}
                keys |= {f"stage.{cell.stage}.{word}": value for word, value in cell.parameters.items()}
                build.algorithms(build.Recipe.from_flat(keys))


def test_every_published_value_of_the_paper_has_its_cell() -> None:
    rows = [row for row in published_rows() if row["paper"] == "ccvr"]
    covered = [
        [row for row in rows if all(row[k] == v for k, v in cell.find.items())]
        for name in CCVR
        for cell in tables.load(name).cells()
    ]
    assert all(len(found) == 1 for found in covered)
    assert {id(found[0]) for found in covered} == {id(row) for row in rows}


def test_table_8s_hyper_parameters_reach_their_cells() -> None:
    cells = {cell.name: cell for cell in tables.load("ccvr/table2").cells()}
    assert cells["cifar10-0.05 fedprox ccvr"].keys["method.mu"] == 0.01
    assert cells["cifar10-0.1 fedprox ccvr"].keys["method.mu"] == 0.001
    assert cells["cifar10-0.05 moon ccvr"].keys["method.mu"] == 5
    assert dict(cells["cifar10-0.5 fedavg ccvr"].parameters) == {"tukey": "real", "samples": 100, "epochs": 30}
    assert dict(cells["cifar10-0.1 fedavg ccvr"].parameters) == {"tukey": "real", "samples": 2000, "epochs": 10}
    assert dict(cells["cifar100 moon ccvr"].parameters) == {"tukey": "real", "samples": 500, "epochs": 10, "lr": 1e-5}
    assert dict(cells["cinic10 fedavg ccvr"].parameters) == {"tukey": "real", "samples": 1000, "epochs": 50}
    assert cells["cinic10 fedavg before"].keys["batch_size"] == 512
    assert cells["cinic10 fedavg before"].keys["model"] == "mobilenetv2"
    assert "method.mu" not in cells["cifar10-0.1 fedavg before"].keys
    one = {cell.name: cell for cell in tables.load("ccvr/table1").cells()}
    assert one["clsnorm+clsprox cifar10-0.05"].keys["method.mu"] == 0.01
    assert one["clsnorm+clsprox cifar10-0.05"].keys["model.head"] == "normalized"
    assert one["clsnorm cifar10-0.5"].keys.get("method", "fedavg") == "fedavg"


@pytest.mark.slow
def test_cells_share_runs_and_finished_ones_are_not_run_again(tmp_path: Path) -> None:
    table = parse("paper/tiny", TINY.lstrip())
    said: list[str] = []
    outcome = reproduce(table, tmp_path, scale="small", compute=Compute(device="cpu"), log=said.append)
    assert len(said) == 2 * 2 * 2  # data, methods, seeds: stages train nothing
    assert len(outcome.cells) == 10  # one combination is skipped for each method
    assert all(f.mean is not None and len(f.values) == 2 and f.deviation is not None for f in outcome.cells)
    assert all(f.difference is None for f in outcome.cells)
    assert "NOT comparable" in outcome.note()
    assert outcome.cells[0].published == 68.62
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and p.parent != tmp_path}
    again = reproduce(table, tmp_path, scale="small", compute=Compute(device="cpu"))
    assert again == outcome
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and p.parent != tmp_path}
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["data"] == "digits-for-mild"
    assert rows[0]["published"] == "68.62"
    assert json.loads((tmp_path / "table.json").read_text())["comparable"] is False


def test_full_scale_gives_differences_and_a_picked_cell_runs_alone(tmp_path: Path) -> None:
    table = parse("paper/tiny", TINY.lstrip())
    outcome = reproduce(table, tmp_path, pick=["mild fedavg few"], seeds=1, compute=Compute(device="cpu"))
    (result,) = outcome.cells
    assert result.cell == "mild fedavg few"
    assert result.mean is not None
    assert result.difference == pytest.approx(result.mean - 71.03)
    assert len(list((tmp_path / "runs").iterdir())) == 2  # the training, and the stage that begins where it ends
    with pytest.raises(BadInput, match="unknown cell"):
        table.cells(pick=["mild fedsgd"])


PICK = ["hard fedprox few", "hard fedprox before"]


class Stopped(BaseException):
    """Stands for a kill: nothing on the way catches it."""


@pytest.mark.slow
def test_a_table_goes_on_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, settings = parse("paper/tiny", TINY.lstrip()), Compute(device="cpu")
    whole = reproduce(table, tmp_path / "whole", pick=PICK, compute=settings)
    record = RunFolder.record

    def stop(self: RunFolder, row: dict[str, Any]) -> None:
        if row["round"] == 2 and self.path.name == "seed-1":
            raise Stopped
        record(self, row)

    monkeypatch.setattr(RunFolder, "record", stop)
    out = tmp_path / "stopped"
    with pytest.raises(Stopped):
        reproduce(table, out, pick=PICK, compute=settings)
    monkeypatch.undo()
    done = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    assert {path.parent.name for path in done} == {"seed-0"}
    again = reproduce(table, out, pick=PICK, compute=settings)
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    for mine, theirs in zip(again.cells, whole.cells, strict=True):
        assert mine.values == pytest.approx(theirs.values, abs=0.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("skip:", "skp:"), "unknown key in paper/tiny 'skp'"),
        (("set: {method: fedavg}", "sets: {method: fedavg}"), "unknown key in paper/tiny, method fedavg 'sets'"),
        (("data: hard, method", "date: hard, method"), "unknown axis of paper/tiny 'date'"),
        (("data: hard, method", "data: heard, method"), "did you mean 'hard'"),
        (("paper: ccvr", ""), "'paper' is missing"),
    ],
)
def test_mistakes_in_a_table_are_named(change: tuple[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        parse("paper/tiny", TINY.lstrip().replace(*change))


EXTENDING = """
# Two methods of Table 2 on one split
paper: ccvr
table: 2
extends: table2
base: {rounds: 2}
axes:
  data: [cifar10-0.1]
  method: [fedavg, fedprox]
"""


def test_a_table_extends_another_one_of_its_paper() -> None:
    table = parse("paper/short", EXTENDING.lstrip())
    cells = {cell.name: cell.keys for cell in table.cells()}
    whole = {cell.name: cell.keys for cell in tables.load("ccvr/table2").cells()}
    for name, keys in cells.items():
        assert keys == {**whole[f"{name} before"], "rounds": 2}
    assert cells["cifar10-0.1 fedprox"]["method.mu"] == 0.001
    assert list(table.variants()) == ["moon-split-0.1"]  # the others concern axes or choices that it does not have
    assert table.cells("small")[0].keys["dataset"] == "digits"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("table2", "table9"), "unknown table 'ccvr/table9'"),
        (("fedprox", "fedpox"), "unknown choice of paper/short's axis method 'fedpox': did you mean 'fedprox'"),
        (("data: [", "date: ["), "unknown choice of paper/short's axis date 'cifar10-0.1'"),
        (("extends: table2\n", ""), "unknown choice of paper/short's axis data 'cifar10-0.1'"),
    ],
)
def test_a_table_extends_known_tables_and_choices(change: tuple[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        parse("paper/short", EXTENDING.lstrip().replace(*change))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["reproduce"]) == 0
    assert "ccvr/table2" in capsys.readouterr().out
    assert call(["reproduce", "ccvr/table2", "--dry-run", "--cells", "cifar10-0.1 fedavg"]) == 0
    listed = capsys.readouterr().out.split("\n")
    assert listed[:3] == ["cifar10-0.1 fedavg before", "cifar10-0.1 fedavg ccvr", "cifar10-0.1 fedavg whole-data"]
    assert call(["reproduce", "ccvr/tabel2"]) == 2
    assert "did you mean 'ccvr/table2'?" in capsys.readouterr().err
    assert call(["reproduce", "ccvr/table2", "--cells", "nothing", "--out", str(tmp_path / "t")]) == 2
    assert not (tmp_path / "t").exists()


@pytest.mark.long
def test_table_2_runs_small_from_a_fresh_clone_and_goes_on_after_kill_9(tmp_path: Path) -> None:
    out = tmp_path / "table"
    line = [sys.executable, "-m", "fedhead", "reproduce", "ccvr/table2", "--scale", "small"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FEDHEAD_DATA": str(tmp_path / "nothing")}
    line += ["--out", str(out), "--device", "cpu", "--cells", "cifar10-0.1 fedavg,cifar10-0.1 moon,cifar100 fedavg"]
    process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not any(out.rglob("result.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {p: p.stat().st_mtime_ns for p in out.rglob("result.json")}
    assert done
    assert not (out / "table.csv").exists()
    subprocess.run(line, env=environment, check=True, capture_output=True, timeout=280)
    assert all(p.stat().st_mtime_ns == when for p, when in done.items())
    found = json.loads((out / "table.json").read_text())
    asked = {
        f"digits-for-{name} {stage}"
        for name in ("cifar10-0.1 fedavg", "cifar10-0.1 moon", "cifar100 fedavg")
        for stage in ("before", "ccvr", "whole-data")
    }
    assert {f["cell"] for f in found["cells"]} == asked
    assert all(f["mean"] > 50 for f in found["cells"])
    whole = tables.load("ccvr/table2")
    assert folder(out, whole.cells("small", ["cifar100 fedavg"])[0].recipe(0)).exists()
