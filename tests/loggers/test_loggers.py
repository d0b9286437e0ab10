"""Loggers carry the records elsewhere; one that is missing is refused at once, one that fails is left out."""

from __future__ import annotations

import csv
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from simulations import RowFunction

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.observer import Snapshot
from fedhead.loggers.base import RunInfo
from fedhead.recipes.component_kinds import LOGGER_KIND
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_loggers import RunLoggers

SMALL = ["rounds=3", "clients=3", "subset=200", "model.hidden=[8]", "client_test=0.2", "evaluate_every=2"]


class Stopped(BaseException):
    """Stands for a kill."""


def stop_at(number: int) -> Any:
    def stop(row: dict[str, Any]) -> None:
        if row["round"] == number:
            raise Stopped

    return stop


def interrupted(out: Path, loggers: list[str]) -> list[dict[str, Any]]:
    """Run a recipe that is stopped and resumed, and return its records."""
    recipe = load("digits", [*SMALL, f"loggers={loggers}"])
    with pytest.raises(Stopped):
        execute(recipe, out, Compute(executor="loop"), observers=[RowFunction(stop_at(2))])
    execute(recipe, out, resume=True)
    return RunFolder.open(out).metrics()


# -- CSV --------------------------------------------------------------------------------------------------
def test_csv_has_one_line_per_round_also_after_a_resumption(tmp_path: Path) -> None:
    rows = interrupted(tmp_path / "run", ["csv"])
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["round"]) for line in lines] == [1, 2, 3]
    assert [float(line["train_loss"]) for line in lines] == pytest.approx([row["train_loss"] for row in rows])
    assert lines[0]["accuracy"] == ""  # that round was not evaluated
    assert float(lines[1]["personal_weighted"]) == pytest.approx(rows[1]["personal_weighted"])


def test_python_runs_without_a_folder_name_a_file(tmp_path: Path) -> None:
    x, y = [[0.0, 1.0], [1.0, 0.0]] * 20, [0, 1] * 20
    federation = fh.Federation.from_arrays(x, y, "iid", clients=2, test=0.2)
    with pytest.raises(BadInput, match=r"logger csv: the run has no folder: give the file, csv\(path="):
        fh.run(federation, "mlp", rounds=1, loggers=["csv"])
    result = fh.run(federation, "mlp", rounds=2, loggers=[fh.CSVLogger(str(tmp_path / "own.csv"))], metrics=["f1"])
    with (tmp_path / "own.csv").open(newline="") as file:
        assert [float(line["f1"]) for line in csv.DictReader(file)] == [row["metrics"]["f1"] for row in result.rows]


# -- one's own, and those that fail -----------------------------------------------------------------------
@dataclass
class Down(fh.Logger):
    """Fails from some call on."""

    fails_at: str = "start"
    calls: list[str] = field(default_factory=list, repr=False)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails_at:
            raise ConnectionError("the server is down")

    def start(self, run: RunInfo) -> None:
        """Note it."""
        self._call("start")

    def log_round(self, row: Any) -> None:
        """Note it."""
        self._call(f"round {row['round']}")

    def log_result(self, result: Any) -> None:
        """Note it."""
        self._call("result")

    def close(self) -> None:
        """Note it."""
        self._call("close")


@pytest.mark.parametrize("when", ["start", "round 2", "result", "close"])
def test_a_logger_that_is_down_is_named_once_and_the_run_is_not_lost(
    tmp_path: Path, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    down, up = Down(when), Down("never")
    with caplog.at_level(logging.WARNING, "fedhead"):
        found = execute(load("digits", SMALL), tmp_path / "run", Compute(executor="loop"), loggers=(down, up))
    assert found["accuracy"] > 0
    every = ["start", "round 1", "round 2", "round 3", "result", "close"]
    assert down.calls == every[: every.index(when) + 1]
    assert up.calls == every
    said = [record.message for record in caplog.records if "logger Down failed" in record.message]
    at = {"start": "start", "result": "the result", "close": "the end"}.get(when, when)
    expected = f"logger Down failed at {at} and is left out from now on (ConnectionError: the server is down)"
    assert said == [expected]


def test_loggers_are_closed_when_a_run_is_killed(tmp_path: Path) -> None:
    up = Down("never")
    with pytest.raises(Stopped):
        execute(
            load("digits", SMALL),
            tmp_path / "run",
            Compute(executor="loop"),
            loggers=(up,),
            observers=[RowFunction(stop_at(1))],
        )
    assert up.calls == ["start", "round 1", "close"]


def test_loggers_do_not_decide_a_run(tmp_path: Path) -> None:
    recipe = load("digits", SMALL)
    with pytest.raises(Stopped):
        execute(recipe, tmp_path / "run", Compute(executor="loop"), observers=[RowFunction(stop_at(1))])
    execute(recipe.override(["loggers=[csv]"]), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_one_that_is_not_installed_leaves_no_folder(
    tmp_path: Path, name: str, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert call(["run", "digits", "rounds=1", "--logger", name, "--out", str(tmp_path / "run")]) == 2
    assert f"logger {name} needs {name}: install it with pip install 'fedhead[{name}]'" in capsys.readouterr().err
    assert call(["run", "digits", "rounds=1", f"loggers=[{name}]", "--out", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()


def test_texts_and_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import fedhead as fh\nclass Quiet(fh.Logger): ...\n")
    assert LOGGER_KIND.build(["own.py:Quiet"], [tmp_path])[0].name == "Quiet"
    assert LOGGER_KIND.build(["wandb(project=mine, mode=online)"]) == (fh.WandB("mine", "online"),)
    for text, message in (
        ("tensorbord", "did you mean 'tensorboard'"),
        ("wandb(mode=disabled)", "'disabled' is not one of offline, online"),
    ):
        with pytest.raises(BadInput, match=message):
            LOGGER_KIND.build([text])
    RunLoggers(Recipe(dataset="digits"), None, []).close()


# -- TensorBoard ------------------------------------------------------------------------------------------
def test_tensorboard_shows_curves_and_clients(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="an optional extra")
    from tensorboard.backend.event_processing.event_accumulator import HISTOGRAMS, EventAccumulator

    rows = interrupted(tmp_path / "run", ["tensorboard"])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={HISTOGRAMS: 0})
    events.Reload()
    curve = [(event.step, event.value) for event in events.Scalars("train_loss")]
    assert curve == [(row["round"], pytest.approx(row["train_loss"])) for row in rows]
    assert [event.step for event in events.Histograms("clients/accuracy")] == [2, 3]


# -- MLflow and Weights & Biases, whose modules are stand-ins with the calls that are made ------------------
def test_mlflow_goes_on_as_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[Any, ...]] = []

    class MlflowClient:
        def __init__(self, tracking_uri: str | None = None):
            said.append(("client", tracking_uri))

        def get_experiment_by_name(self, name: str) -> None:
            return None

        def create_experiment(self, name: str) -> str:
            return "7"

        def create_run(self, experiment: str, run_name: str | None = None) -> Any:
            said.append(("create", experiment, run_name))
            return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

        def __getattr__(self, name: str) -> Any:
            return lambda *args, **named: said.append((name, *args, *named.values()))

    module = ModuleType("mlflow")
    module.MlflowClient = MlflowClient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    rows = interrupted(tmp_path / "run", ["mlflow(uri=here)"])
    assert [entry for entry in said if entry[0] == "create"] == [("create", "7", "run")]
    assert ("log_param", "abc", "method", "fedavg") in said
    losses = [entry for entry in said if entry[:3] == ("log_metric", "abc", "train_loss")]
    assert [entry[4] for entry in losses] == [1, 2, 3]
    assert [entry[3] for entry in losses] == pytest.approx([row["train_loss"] for row in rows])
    assert [entry[2] for entry in said if entry[0] == "set_terminated"] == ["KILLED", "FINISHED"]
    assert ("update_run", "abc", "RUNNING") in said


def test_wandb_is_offline_and_goes_on_as_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[dict[str, Any]] = []
    steps: list[tuple[int, dict[str, Any]]] = []
    summary: dict[str, Any] = {}
    finished = []

    def init(**settings: Any) -> Any:
        begun.append(settings)
        return SimpleNamespace(
            id=settings["id"] or "xyz",
            log=lambda values, step: steps.append((step, values)),
            summary=summary,
            finish=lambda: finished.append(1),
        )

    module = ModuleType("wandb")
    module.init, module.Histogram = init, list  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    rows = interrupted(tmp_path / "run", ["wandb(project=mine)"])
    assert [(one["project"], one["mode"], one["id"]) for one in begun] == [
        ("mine", "offline", None),
        ("mine", "offline", "xyz"),
    ]
    assert begun[0]["config"]["method"] == "fedavg"
    assert [(step, values["train_loss"]) for step, values in steps] == [
        (row["round"], row["train_loss"]) for row in rows
    ]
    assert len(steps[1][1]["clients/accuracy"]) == 3
    assert summary["accuracy"] == rows[-1]["accuracy"]
    assert len(finished) == 2


def test_a_logger_whose_check_fails_is_one_line_before_anything_is_written(tmp_path: Path) -> None:
    @dataclass
    class Down(fh.Logger):
        def check(self, folder: Path | None) -> None:
            raise ConnectionError("no answer")

    federation = fh.Federation.from_arrays([[0.0, 1.0], [1.0, 0.0]] * 4, [0, 1] * 4, "iid", clients=2)
    with pytest.raises(BadInput, match=r"^logger Down: the function raised ConnectionError: no answer$"):
        fh.run(federation, "mlp", rounds=1, out=tmp_path / "run", loggers=[Down()])
    assert not (tmp_path / "run").exists()


def test_what_a_logger_does_to_its_record_does_not_change_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Greedy(fh.Logger):
        def log_round(self, row: dict[str, Any]) -> None:
            row.pop("round")
            row["metrics"].clear()

        def log_result(self, result: Any) -> None:
            result.clear()

    rows: list[dict[str, Any]] = [{"round": 1, "metrics": {"f1": 0.5}}]
    result: Any = {"accuracy": 1.0}
    monkeypatch.setattr("fedhead.runs.run_loggers.final_metrics", lambda *_: result)
    group = RunLoggers(Recipe(dataset="digits"), None, [Greedy(), Greedy()])
    group.round(rows[0], Snapshot(1, Tree(), {}, []))
    group.end(result)
    assert rows == [{"round": 1, "metrics": {"f1": 0.5}}]
    assert result == {"accuracy": 1.0}
