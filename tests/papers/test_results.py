"""Figures kept in a CSV file: measured once, on whichever machine, and shown beside the published ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from changed_default import with_default
from made_results import enter, measured
from tiny_table import CPU, rows, tiny

from fedhead.cli import call
from fedhead.core.system.errors import BadInput, Diverged
from fedhead.methods.fedprox import FedProx
from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables import reproduce as reproducing
from fedhead.papers.tables import results_page
from fedhead.papers.tables.reproduce import reproduce
from fedhead.papers.tables.results import FILE, Results, digest
from fedhead.recipes.recipe import Recipe
from fedhead.studies import training


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr(training, "execute", refuse)


def test_a_row_per_cell_split_and_seed(tmp_path: Path) -> None:
    reproduce(tiny(), tmp_path / "runs", pick=["mild fedavg"], splits=[0, 3], results=tmp_path, compute=CPU)
    found = rows(tmp_path)
    assert [(r["cell"], r["split"], r["seed"]) for r in found] == [
        (f"mild fedavg {stage}", split, seed) for seed in "01" for split in "03" for stage in ("before", "ccvr")
    ]
    assert len({r["digest"] for r in found}) == 2
    first, second = found[:2]
    run = json.loads(next((tmp_path / "runs").glob("runs/*/seed-0/result.json")).read_text())
    assert first["stage"] == "none"
    assert second["stage"] == "ccvr"
    assert float(first["value"]) == float(first["accuracy"])
    assert run["accuracy"] in [float(r["value"]) for r in found if r["stage"] == "none"]
    assert int(second["bytes_up"]) > 0
    assert float(first["training_seconds"]) > 0
    assert not first["stage_seconds"]
    assert float(second["stage_seconds"]) > 0
    assert (first["precision"], first["executor"], first["scale"]) == ("fp32", "loop", "full")
    assert first["device"]
    assert first["date"].startswith("20")


def test_another_machine_goes_on_from_the_csv_alone(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    reproduce(tiny(), here / "runs", pick=["mild fedavg"], results=here / "results", compute=CPU)
    shutil.copytree(here / "results", there / "results")
    said: list[str] = []
    outcome = reproduce(tiny(), there / "runs", pick=["mild"], results=there / "results", compute=CPU, log=said.append)
    assert [line.split()[2] for line in said[1:]] == ["fedprox", "fedprox"]  # the other method's two seeds
    assert said[0].startswith(f"4 of 8 results are in {there / 'results'}, from ")
    assert ", fp32; to measure them again" in said[0]
    assert all(f.mean is not None and len(f.values) == 2 for f in outcome.cells)
    assert not list((there / "runs").glob("runs/*fedavg*"))
    assert rows(there / "results")[:4] == rows(here / "results")
    assert len(rows(there / "results")) == 8


@pytest.mark.usefixtures("no_training")
def test_a_result_that_another_cell_has_is_entered_under_this_cells_name_too(tmp_path: Path) -> None:
    one = tiny()
    (cell,) = one.cells(pick=["mild fedavg before"])
    results = Results(tmp_path)
    for w in reproducing.repetitions("paper/other", cell, "full", None, None):
        results.add(measured(w, 50.0 + w.recipe.seed))
    outcome = reproduce(one, tmp_path / "runs", pick=["mild fedavg before"], results=tmp_path, compute=CPU)
    assert outcome.cells[0].values == [50.0, 51.0]
    assert [r["table"] for r in rows(tmp_path)] == ["paper/other"] * 2 + ["paper/tiny"] * 2


def test_a_cell_with_two_results_for_one_seed_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (cell,) = tiny().cells(pick=["mild fedavg before"])
    first, *_ = reproducing.repetitions("paper/tiny", cell, "full", None, None)
    results = Results(tmp_path)
    results.add(measured(first, 50.0))
    assert not caplog.messages
    shutil.copy(tmp_path / FILE, tmp_path / "elsewhere.csv")  # of another machine
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text().replace(",50.0,", ",60.0,"))
    assert [row.value for row in Results(tmp_path)] == [50.0]  # one, not two: elsewhere.csv comes first
    [said] = caplog.messages
    assert said.endswith("measured twice with different results, 50.0 and 60.0; the first counts")


def test_rows_are_on_the_disk_before_the_next_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """Stands for a machine that disappears."""

    real, begun = training.execute, list[int]()

    def dies(*args: Any, **kwargs: Any) -> Any:
        begun.append(1)
        if len(begun) == 5:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(training, "execute", dies)
    with pytest.raises(Killed):
        reproduce(tiny(), tmp_path / "runs", results=tmp_path, compute=CPU)
    assert len(rows(tmp_path)) == 4  # two runs, each with its stage


def test_runs_and_results_may_be_in_one_folder(tmp_path: Path) -> None:
    for _ in range(2):  # the second one finds table.csv of the first
        found = reproduce(tiny(), tmp_path, pick=["mild fedavg before"], seeds=1, results=tmp_path, compute=CPU)
        assert found.cells[0].mean is not None
    assert (tmp_path / "table.csv").exists()


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize(
    ("where", "reason"),
    [("file", "it is no folder"), ("file/below", "Not a directory"), ("/proc/x", "No such file or directory")],
)
def test_a_folder_that_can_t_keep_results_is_refused_before_anything_is_trained(
    tmp_path: Path, where: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=f"can't keep results: {reason}; select another folder with --results"):
        reproduce(tiny(), tmp_path / "runs", pick=["mild fedavg"], results=tmp_path / where, compute=CPU)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(BadInput, match=f"can't keep runs: {reason}; select another folder with --out"):
        reproduce(tiny(), tmp_path / where, pick=["mild fedavg"], compute=CPU)


def test_runs_that_fail_leave_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = training.execute

    def fails(recipe: Recipe, *args: Any, **kwargs: Any) -> Any:
        if recipe.seed == 1:
            raise Diverged("left the finite numbers")
        return real(recipe, *args, **kwargs)

    monkeypatch.setattr(training, "execute", fails)
    said: list[str] = []
    result = reproduce(
        tiny(**{"seeds: {full: 2": "seeds: {full: 3"}), tmp_path / "runs", pick=["mild fedavg"], results=tmp_path,
        compute=CPU, log=said.append,
    )  # fmt: skip
    assert [r["seed"] for r in rows(tmp_path)] == ["0", "0", "2", "2"]
    names = ["mild fedavg before, seed 1", "mild fedavg ccvr, seed 1"]
    assert (result.failures, result.left) == (dict.fromkeys(names, "left the finite numbers"), 2)
    assert f"failed: {names[0]}: left the finite numbers" in said


# -- what identifies a result -------------------------------------------------------------------------
def test_a_digest_follows_from_the_code_of_own_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.py"
    text = (
        "from dataclasses import dataclass\nimport fedhead as fh\n\n@dataclass(frozen=True)\nclass Mine(fh.Method):\n"
    )
    mine.write_text(text + '    """FedAvg."""\n')
    cell = tables.load("ccvr/table2").cells()[0].override({"method": "mine.py:Mine"})
    before = digest(cell)
    assert digest(cell) == before
    mine.write_text(text + '    """FedAvg, changed."""\n')
    assert digest(cell) != before


def test_a_digest_follows_from_all_settings_but_seed_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {cell.name: cell for cell in tiny().cells()}
    assert len({digest(cell) for cell in cells.values()}) == len(cells)
    one = cells["mild fedprox ccvr"]
    default = one.override({"method.mu": FedProx().mu})
    assert digest(default) == digest(one)  # a default that is written out is the same setting
    other = one.override({"method.mu": 0.5})
    assert digest(other) != digest(one)
    assert digest(one.override({"partition": "dirichlet(0.4)"})) != digest(one)
    with_default(monkeypatch, FedProx, "mu", 0.5)
    assert digest(one) == digest(other) != digest(default)  # a default that changes makes another result


def test_overrides_and_variants(tmp_path: Path) -> None:
    table = tiny()
    hard = table.cells(pick=["hard fedprox"])
    (strong_before, strong_ccvr) = table.varied(hard, ["strong"])
    assert strong_before.keys["method.mu"] == 0.5
    assert list(strong_ccvr.overrides) == ["method.mu=0.5"]
    (tukey,) = table.varied(hard, ["tukey"])
    assert tukey.parameters["tukey"] == "real"
    with pytest.raises(BadInput, match="did you mean 'tukey'"):
        table.varied(hard, ["tuky"])
    with pytest.raises(BadInput, match="the variant tukey concerns none of the picked cells"):
        table.varied(table.cells(pick=["mild fedavg before"]), ["tukey"])
    with pytest.raises(BadInput, match="use --splits"):
        hard[0].override({"partition_seed": 3})
    with pytest.raises(BadInput, match=r"stage\.recalibrate\.lr: concerns none of the picked cells"):
        reproduce(table, tmp_path / "r", pick=["mild"], overrides={"stage.recalibrate.lr": 1}, compute=CPU)
    changed = reproduce(
        table, tmp_path / "r", pick=["mild fedavg"], seeds=1, overrides={"stage.ccvr.lr": 0.5}, results=tmp_path,
        compute=CPU,
    )  # fmt: skip
    assert [list(f.overrides) for f in changed.cells] == [[], ["stage.ccvr.lr=0.5"]]
    assert "but for stage.ccvr.lr=0.5" in changed.note()
    assert [r["overrides"] for r in rows(tmp_path)] == ["", "stage.ccvr.lr=0.5"]


def test_variants_that_combine_others() -> None:
    table = tiny()
    found = {cell.name: list(cell.overrides) for cell in table.varied(table.cells(pick=["hard"]), ["both"])}
    assert found == {
        "hard fedavg ccvr": ["stage.ccvr.tukey=real"],
        "hard fedprox before": ["method.mu=0.5"],
        "hard fedprox ccvr": ["stage.ccvr.tukey=real", "method.mu=0.5"],
    }


# -- the page -----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_page_shows_ours_beside_the_published_and_gains_within_a_split(tmp_path: Path) -> None:
    before, after = "cifar10-0.1 fedavg before", "cifar10-0.1 fedavg ccvr"
    enter(tmp_path, "ccvr/table2", {before: {0: 50.0, 1: 56.0}, after: {0: 62.0, 1: 64.0}})
    enter(tmp_path, "ccvr/table2", {after: {0: 61.0}}, {"stage.ccvr.tukey": "none"})
    (tmp_path / "notes.md").write_text("Why FedAvg is lower: the split.\n")
    assert call(["reproduce", "--summary", "--results", str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    assert "| cifar10-0.1 | fedavg | before | 53.00 ± 4.24 | 2 × 1 | 58.55 ± 0.98 | **-5.55** | no |  |  |" in text
    assert "| 63.00 ± 1.41 | 2 × 1 | 62.68 ± 0.54 | +0.32 | yes | +10.00 ± 2.83 | +4.13 |" in text
    assert "`stage.ccvr.tukey=none` | 61.00 | 1 × 1 | 62.68 ± 0.54 | **-1.68** |  |" in text
    assert "Why FedAvg is lower" in text
    assert "## ccvr/table1" in text  # FedAvg of Table 1 is the same result
    assert "2 of 3 cells are close" not in text
    assert "58 of its 60 cells are not measured yet" in text
    assert "on a GPU (bf16)" in text
    assert (tmp_path / "figure.svg").read_text().count("<use") >= 2
    again = text
    results_page.write(tmp_path)
    assert (tmp_path / "README.md").read_text() == again


@pytest.mark.slow
def test_a_mean_over_rounds_is_no_start_of_a_stage(tmp_path: Path) -> None:
    before, after = "fedavg cifar10-0.1 general", "ccvr cifar10-0.1 general"
    enter(tmp_path, "fedetf/table1", {before: {7: 52.0}, after: {7: 61.0}})
    text = results_page.write(tmp_path).read_text()
    assert "| ccvr | cifar10-0.1 | general | 61.00 |" in text
    assert "+9.00" not in text


def test_stored_results_of_another_precision_are_named(tmp_path: Path) -> None:
    one = tiny()
    (cell,) = one.cells(pick=["mild fedavg before"])
    (w,) = reproducing.repetitions(one.name, cell, "full", 1, None)
    Results(tmp_path).add(measured(w, 50.0))
    said: list[str] = []
    reproduce(
        one, tmp_path / "runs", pick=["mild fedavg before"], seeds=1, results=tmp_path, compute=CPU, log=said.append
    )
    assert said == [
        f"1 of 1 results are in {tmp_path}, from a GPU, bf16, where fp32 is asked for now; to measure them again, use "
        "another folder"
    ]


def test_a_page_of_small_results_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = tables.load("ccvr/table1").cells("small", ["fedavg cifar10-0.5"])
    (w,) = reproducing.repetitions("ccvr/table1", cell, "small", 1, None)
    Results(tmp_path).add(measured(w, 50.0))
    assert call(["reproduce", "--summary", "--results", str(tmp_path)]) == 2
    assert "scale small alone" in capsys.readouterr().err


def test_a_folder_without_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["reproduce", "--summary", "--results", str(tmp_path)]) == 2
    assert "holds no results" in capsys.readouterr().err
    assert call(["reproduce", "--summary"]) == 2
    assert "give it with --results" in capsys.readouterr().err
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert call(["reproduce", "--summary", "--results", str(tmp_path)]) == 2
    assert "is no file of results: its first line has a,b in place of table,cell" in capsys.readouterr().err


# -- the command line ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ccvr/table1", "--seeds", "x"], "--seeds 'x': write how many (3), or which ones"),
        (["ccvr/table1", "--seeds", "0"], "--seeds: 0 is out of range, it must be at least 1"),
        (
            ["ccvr/table1", "--seeds", "9999999999999"],
            "--seeds: 9999999999999 is out of range, it must be at least 1 and at most 10000",
        ),
        (["ccvr/table1", "--seeds", "9999", "--splits", "9999"], "99980001 runs of a cell are too many, at most 10000"),
        (["ccvr/table1", "--splits", "1,1"], "--splits '1,1': write how many (3), or which ones"),
        (["ccvr/table1", "--splits", "0"], "--splits: 0 is out of range, it must be at least 1"),
        (["ccvr/table1", "seed=3"], "use --seeds"),
        (["ccvr/table2", "--variants", "tukey-nome"], "did you mean 'tukey-none'"),
        (["ccvr/table1", "nonsense"], "'nonsense' is no assignment"),
        (["ccvr/table1", "method.nu=3"], "fedavg cifar10-0.5 method.nu=3: method.nu: "),
    ],
)
def test_mistakes_on_the_command_line_are_named(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["reproduce", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_line_lists_variants_and_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["reproduce", "ccvr/table2", "--dry-run", "--cells", "cifar10-0.1 fedavg", "--variants", "tukey-none"]
    assert call(line) == 0
    assert capsys.readouterr().out == "cifar10-0.1 fedavg ccvr stage.ccvr.tukey=none\n"
    assert tables.load("fedetf/table1").cells(pick=["fedetf cifar10-0.05"])[0].seeds == [7, 8, 10]


_LACKING = ["pydantic", "pooch", "captum", "flwr", "tensorboard"]
_SCRIPT = f"""
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {_LACKING!r}:
            raise ImportError(f"{{name}} is not installed here")
sys.meta_path.insert(0, Finder())
from fedhead.cli import call
sys.exit(call(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_machine_with_few_packages_can_measure(tmp_path: Path) -> None:
    words = ["reproduce", "ccvr/table2", "--scale", "small", "--cells", "cifar10-0.1 fedavg", "--device", "cpu"]
    words += ["rounds=1", "stage.ccvr.epochs=1", "stage.recalibrate.epochs=1", "--results", "results", "--minutes", "9"]
    done = subprocess.run([sys.executable, "-c", _SCRIPT, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(rows(tmp_path / "results")) == 3


def test_the_committed_rows_are_results_of_today_s_settings() -> None:
    rows = list(Results(Path(__file__).parents[2] / "results"))
    assert rows
    cells = {name: {cell.name: cell for cell in tables.load(name).cells()} for name in {row.table for row in rows}}
    digests = {(row.table, row.cell): digest(cells[row.table][row.cell]) for row in rows if not row.overrides}
    outdated = [row for row in rows if not row.overrides and digests[row.table, row.cell] != row.digest]
    assert not outdated, "a setting of these cells changed: measure them again"
