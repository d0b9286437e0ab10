"""A plugin package of one file outside the repository, used wherever fedhead's own components are."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plugin_package
import pytest
from federal_plugin import CODE, ENTRY_POINTS
from simulations import RowFunction

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes import experiment as build
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs.reopen import reopen
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import METRICS

LOOP = Compute(executor="loop")
RECIPE = """
dataset: {0}moons
partition: {0}halves(0.4)
model: {0}net(head={0}Cosine(gain=2))
uploads: ["{0}Rounded(4)"]
aggregator: "{0}Shortest(3)"
sampler: "{0}ByTurns"
method: {0}FedMine
method.mu: 0.1
stages: ["{0}Shrink"]
stage.{0}Shrink.factor: 0.25
metrics: ["{0}recall_of_first", f1]
clients: 4
rounds: 3
batch_size: 16
"""
BY_ENTRY_POINT = """
dataset: moons
partition: halves(share=0.4)
model: tinynet(head=cosine(gain=2))
uploads: [rounded(4)]
aggregator: shortest(count=3)
sampler: by_turns
method: fedmine
method.mu: 0.1
stages: [shrink]
stage.shrink.factor: 0.25
metrics: [first_recall, f1]
clients: 4
rounds: 3
batch_size: 16
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The plugin package, installed into a folder on sys.path."""
    folder = plugin_package.install(tmp_path / "site", "federal-plugin", {"federal": CODE}, ENTRY_POINTS, "1.2")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    sys.modules.pop("federal", None)
    yield folder
    sys.modules.pop("federal", None)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A recipe with its components in a file beside it."""
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "federal.py").write_text(CODE)
    (folder / "mine.yaml").write_text(RECIPE.format("federal.py:"))
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "metrics")} for row in rows]


def test_a_file_a_module_and_entry_points_train_alike(site: Path, beside: Path, tmp_path: Path) -> None:
    (tmp_path / "module.yaml").write_text(RECIPE.format("federal:"))
    (tmp_path / "entry.yaml").write_text(BY_ENTRY_POINT)
    recipes = [beside / "mine.yaml", tmp_path / "module.yaml", tmp_path / "entry.yaml"]
    results = [execute(load(recipe), tmp_path / recipe.stem, LOOP) for recipe in recipes]
    assert rows(tmp_path / "mine") == rows(tmp_path / "module") == rows(tmp_path / "entry")
    assert all(set(result["stages"]) == {"Shrink"} for result in results)
    assert {*results[2]["metrics"]} == {"first_recall", "f1"}
    kinds = {entry["kind"]: entry for entry in RunFolder.open(tmp_path / "entry").environment()["components"]}
    assert set(kinds) == {
        "method", "stage", "model", "head", "dataset", "partition", "metric", "upload", "aggregator", "sampler",
    }  # fmt: skip
    assert kinds["method"] == {
        "kind": "method",
        "name": "fedmine",
        "module": "federal",
        "file": str(site / "federal.py"),
        "digest": kinds["stage"]["digest"],
        "distribution": "federal-plugin",
        "version": "1.2",
    }
    of_file = RunFolder.open(tmp_path / "mine").environment()["components"][0]
    assert of_file["file"] == str(beside / "federal.py")
    assert "distribution" not in of_file


def test_from_python(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(beside)
    federation = fh.Federation.load("federal.py:moons", "federal.py:halves(0.3)", clients=3)
    assert federation.sizes[0] == 60
    assert (federation.classes, federation.input_shape) == (2, (2,))
    result = fh.run(
        federation,
        "federal.py:net",
        "federal.py:FedMine",
        rounds=2,
        stages=["federal.py:Shrink"],
        metrics=["balanced_accuracy", "federal.py:recall_of_first"],
        executor="federal.py:MyLoop",
        device="cpu",
    )
    assert list(result.stages) == ["Shrink"]
    assert result.executor == "federal.py:MyLoop"
    whole = fh.build("federal.py:whole_net", (2,), 2, width=5)
    assert (whole.features, whole.head) == (5, "linear")
    assert fh.build("federal.py:whole_net", (2,), 2, head="etf").head == "etf"
    other = fh.build("mlp", (2,), 2, head="federal.py:Cosine")
    assert (other.head, other.classifier.bias) == ("federal.py:Cosine", None)


def test_objects_stand_for_names_in_python() -> None:
    x = np.random.RandomState(0).randn(30, 4)

    def data() -> tuple[Any, ...]:
        return x[:20], [0, 1] * 10, x[20:], [0, 1] * 5

    def first_has(y: Any, clients: int, rng: Any, samples: int = 2) -> list[Any]:
        return [np.arange(samples), *np.array_split(np.arange(samples, len(y)), clients - 1)]

    federation = fh.Federation.load(data, first_has, clients=3)
    assert (federation.title, federation.partition, federation.sizes) == ("data", "first_has", (2, 9, 9))
    fewer = fh.Federation.load(data, functools.partial(first_has, samples=4), clients=3)
    assert (fewer.partition, fewer.sizes[0]) == ("first_has(samples=4)", 4)
    assert fh.Federation.from_arrays(x, [0, 1] * 15, Halves, clients=2).sizes == (15, 15)
    for wrong, words in (
        (dict, "dict is the class dict, no partition: name a subclass of fedhead.Partition or a function (y, clients"),
        (lambda y: [y], "lambda takes (y), a partition is called with (y, clients, rng, …)"),
        (3, "partition is the number 3: name its rule as well, such as 'dirichlet(3)'"),
        (lambda y, clients, rng: 1 / 0, "partition lambda: the function raised ZeroDivisionError: division by zero"),
    ):
        with pytest.raises(BadInput, match=re.escape(words)):
            fh.Federation.load(data, wrong, clients=3)  # type: ignore[arg-type]  # the fault
    with pytest.raises(BadInput, match=re.escape("lambda takes (a), a data set is called with (): give 'a' a default")):
        fh.Federation.load(lambda a: None)  # type: ignore[arg-type,misc]  # the fault


@dataclass(frozen=True)
class Halves(fh.Partition):
    """Cut in the middle."""

    def assign(self, y: Any, classes: int, clients: int, rng: Any) -> list[Any]:
        return list(np.array_split(np.arange(len(y)), clients))


@pytest.mark.slow
def test_every_way_of_the_command_line(
    site: Path, beside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["run", str(beside / "mine.yaml"), "--out", str(run), "--quiet", "--executor", "myloop"]
    assert call([*words, "method=federal:FedMine", "method.mu=0.2"]) == 0
    assert call(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert call(["analyse", "federal:sizes", str(run), "--device", "cpu"]) == 0
    assert call(["analyse", "sizes", str(run), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {str(run): 2 * 12 + 12 + 12 * 2}
    assert (run / "analysis" / "sizes.json").exists()
    assert call(["validate", str(beside / "mine.yaml")]) == 0
    for kind, name in [("methods", "fedmine"), ("stages", "shrink"), ("models", "tinynet"), ("datasets", "moons"),
                       ("uploads", "rounded"), ("aggregators", "shortest"), ("samplers", "by_turns"),
                       ("heads", "cosine"), ("analyses", "sizes")]:  # fmt: skip
        capsys.readouterr()
        assert call(["ls", kind, "--json"]) == 0
        listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
        assert listed[name]["from"] == "federal-plugin 1.2"
        assert {entry["from"] for entry in listed.values()} == {"built in", "federal-plugin 1.2"}


def test_all_twelve_kinds_in_a_file_beside_the_recipe_from_another_folder(
    beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = tmp_path / "run"
    words = ["run", str(beside / "mine.yaml"), "--out", str(run), "--quiet", "--executor", "federal.py:MyLoop"]
    assert call(words) == 0, capsys.readouterr().err
    begun = RunFolder.open(run).environment()
    assert begun["executor"] == "federal.py:MyLoop"
    assert {entry["name"] for entry in begun["components"]} == {
        "federal.py:moons", "federal.py:halves", "federal.py:net", "federal.py:Cosine", "federal.py:Rounded",
        "federal.py:Shortest", "federal.py:ByTurns",
        "federal.py:FedMine", "federal.py:Shrink", "federal.py:recall_of_first", "f1", "federal.py:MyLoop",
    }  # fmt: skip
    assert call(["analyse", "federal.py:sizes", str(run), "--device", "cpu"]) == 0, capsys.readouterr().err
    assert json.loads((run / "analysis" / "sizes.json").read_text()) == {str(run): 2 * 12 + 12 + 12 * 2}
    assert [line for line in CODE.splitlines() if "import" in line and "fedhead" in line] == ["import fedhead as fh"]


WAITING = """
import os
import time
import fedhead as fh

class Waiting(fh.Executor):
    'The plain loop, which can wait to be killed before the run ends.'

    def train(self, job):
        if "WAIT" in os.environ and job.round > 30:
            time.sleep(1000)
        return fh.Loop().train(job)
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_killed_and_resumed(beside: Path, tmp_path: Path) -> None:
    recipe = load(beside / "mine.yaml", ["rounds=40"])
    execute(recipe, tmp_path / "whole", LOOP)
    run = tmp_path / "run"
    (beside / "waiting.py").write_text(WAITING)
    command = [sys.executable, "-m", "fedhead", "run", str(beside / "mine.yaml"), "rounds=40", "--out", str(run)]
    command += ["--quiet", "--executor", "waiting.py:Waiting"]
    begun = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "WAIT": "1"})
    while begun.poll() is None and not (run / "checkpoint.safetensors").exists():
        time.sleep(0.01)
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    assert not RunFolder.open(run).finished
    execute(recipe, run, resume=True)
    assert rows(run) == rows(tmp_path / "whole")


class Stopped(BaseException):
    """Stands for a kill."""


def begun(recipe: Recipe, run: Path) -> Path:
    def stop(row: dict[str, Any]) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        execute(recipe, run, LOOP, observers=[RowFunction(stop)])
    return run


def test_code_that_is_gone_or_has_changed(beside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = begun(load(beside / "mine.yaml"), tmp_path / "run")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    words = ["run", str(beside / "mine.yaml"), "--out", str(run), "--quiet", "--resume"]

    def refused(*arguments: str) -> str:
        assert call(list(arguments)) == 2
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before, "nothing is lost"
        (line,) = capsys.readouterr().err.splitlines()
        return line

    (beside / "federal.py").rename(beside / "away.py")
    assert f"which was in {beside / 'federal.py'}: put the file back there, or into {run}" in refused(*words)
    assert "put the file back there" in refused("analyse", "norms", str(run))
    (beside / "federal.py").write_text(CODE.replace("self.mu / 2", "self.mu / 4"))
    assert f"{beside / 'federal.py'} (method federal.py:FedMine, " in refused(*words)
    assert "--allow-changed-code" in refused(*words)
    assert call([*words, "--allow-changed-code"]) == 0
    assert RunFolder.open(run).finished


def test_a_file_in_the_run_folder_is_found(beside: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    execute(load(beside / "mine.yaml"), run, LOOP)
    (beside / "federal.py").rename(run / "federal.py")
    assert reopen(run, device="cpu").round == 3


def test_a_package_that_is_gone_or_has_another_version(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "entry.yaml").write_text(BY_ENTRY_POINT)
    recipe = load(tmp_path / "entry.yaml")
    run = begun(recipe, tmp_path / "run")
    shutil.move(site / "federal_plugin-1.2.dist-info", tmp_path)
    plugin_package.install(site, "federal-plugin", {"federal": CODE}, ENTRY_POINTS, "1.3")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "new")])  # entry points are read once for each path
    with pytest.raises(BadInput, match=r"federal-plugin 1\.2 to 1\.3 \(method fedmine, "):
        execute(recipe, run, resume=True)
    shutil.rmtree(site)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "newer")])
    sys.modules.pop("federal", None)
    with pytest.raises(BadInput, match=r"needs the method fedmine, which is not here: install federal-plugin==1\.2"):
        execute(recipe, run, resume=True)
    with pytest.raises(BadInput, match=r"install federal-plugin==1\.2"):
        reopen(run)
    assert call(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0  # which needs no code


BROKEN = {
    "1 / 0": ("method=own.py:A", "does not import (ZeroDivisionError"),
    "import fedhead\n\ndef f():\n    1 / 0\n\nf()": ("method=own.py:A", "own.py, line 4, does not import (ZeroDiv"),
    "A = 3": ("method=own.py:A", "own.py:A is of type int, not a class"),
    "def A(shape, width): ...": ("model=own.py:A", "own.py:A takes (shape, width), a model is called with"),
    "def A(shape): return 3": ("model=own.py:A", "model 'own.py:A' made int: return fedhead.FeatureExtractor"),
    "def A(): return 1, 2": ("dataset=own.py:A", "must return (x, y, x_test, y_test)"),
    "def A(): raise KeyError('no disk')": ("dataset=own.py:A", "the function raised KeyError: 'no disk'"),
    "A = 4": ("dataset=own.py:A", "own.py:A is int, no data set"),
    "def A(y): ...": ("partition=own.py:A", "own.py:A takes (y), a partition is called with (y, clients, rng, …)"),
    "def A(y, k, rng): return [[0]] * k": ("partition=own.py:A", "sample 0 is at 10 clients"),
    "def A(y, k, rng): return []": ("partition=own.py:A", "it assigned indices to 0 clients, there are 10"),
    "def A(y, k, rng, x: float = 1): ...": ("partition=own.py:A(1, 2)", "2 values are too many, own.py:A takes x"),
    "def A(a, b): ...": (
        "metrics=[own.py:A]",
        "own.py:A takes (a, b): name its arguments after what it needs",
    ),
    "class A: ...": ("stages=[own.py:A]", "own.py:A is no stage: let A inherit from fedhead.Stage"),
    "B = 1": ("method=own.py:A", "unknown name in own.py 'A'"),
    "import fedhead as fh\nclass B(fh.Method): ...": ("method=own.py:A", "unknown name in own.py 'A'. Known: B"),
}


@pytest.mark.slow
@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_plugin_is_one_line_and_no_folder_is_begun(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(code + "\n")
    word, message = BROKEN[code]
    assert call(["run", "digits", word, "--out", "run", "--quiet", "subset=100"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not Path("run").exists()


def test_an_unknown_executor_begins_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "digits", "--executor", "lop", "--out", str(tmp_path / "run")]) == 2
    assert "unknown executor 'lop': did you mean 'loop'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_same_stage_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="stages: ccvr is given twice"):
        build.algorithms(Recipe(dataset="digits", stages=("ccvr", "ccvr")))
    federation = fh.Federation.load("digits", clients=2, subset=60)
    with pytest.raises(BadInput, match="stages: ccvr is given twice"):
        fh.run(federation, "mlp", rounds=1, stages=[fh.CCVR(samples=10), fh.CCVR(samples=20)])
