"""How a recipe is run: threads, settings that are kept on resuming, and those that don't go together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mixed import perceptron
from simulations import RowFunction
from small import network

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.metrics.records import Row
from fedhead.models.registry import build
from fedhead.recipes import experiment as components
from fedhead.recipes import recipe_data
from fedhead.recipes.component_kinds import COMPONENT_KINDS, ComponentKind
from fedhead.recipes.recipe import load
from fedhead.runs import run
from fedhead.runs.reopen import reopen
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_writer import RunWriter

RECIPE = load("digits", ["rounds=3", "model.hidden=[8]", "clients=3", "subset=120"])


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Stopped(BaseException):
    """Stands for a kill: nothing on the way catches it."""


def test_a_resumed_run_tells_of_new_rounds_and_keeps_its_threads(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def note(row: dict[str, Any]) -> None:
        seen.append((row["round"], torch.get_num_threads()))
        if len(seen) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        execute(RECIPE, tmp_path / "run", Compute(executor="loop", threads=2), observers=[RowFunction(note)])
    execute(RECIPE, tmp_path / "run", resume=True, observers=[RowFunction(note)])
    assert seen[:2] == [(1, 2), (2, 2)]
    assert seen[-1] == (3, 2)


def test_small_models_without_convolutions_take_one_thread() -> None:
    torch.set_num_threads(2)
    large = build("mlp", (1, 30, 30), 10, hidden=[1200])
    assert run.threads_for([perceptron()]) == 1
    assert run.threads_for([perceptron(), network("group")]) == 2  # it convolves
    assert run.threads_for([large, perceptron()]) == 2  # more than a million weights


def test_what_a_run_was_begun_with_holds_unless_something_else_is_asked_for(tmp_path: Path) -> None:
    out, cpu = tmp_path / "run", torch.device("cpu")
    fresh = run._as_begun(RunWriter(RECIPE, out), Compute(executor="loop", precision="bf16"), cpu)
    assert (fresh.executor, fresh.precision, fresh.device, fresh.threads) == ("loop", "bf16", "cpu", None)
    facts = {"executor": "loop", "threads": 2, "precision": "bf16", "device": "cpu"}
    RunFolder.create(out, RECIPE).save_environment(facts)
    begun = RunWriter(RECIPE, out, resume=True)
    for settings in (Compute(), Compute(executor="loop", device="cpu", precision="bf16"), Compute(precision="fp32")):
        again = run._as_begun(begun, settings, cpu)
        assert {name: getattr(again, name) for name in facts} == facts
    for settings, words in ((Compute(executor="stack"), "executor loop"), (Compute(device="cuda"), "device cpu")):
        with pytest.raises(BadInput, match=f"was begun with {words}"):
            run._as_begun(begun, settings, cpu)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["execute", "reopen"])
def test_every_component_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    recipe, out = RECIPE.override(["stages=[ccvr]", "uploads=[half]"]), tmp_path / "run"
    if command == "reopen":
        execute(recipe, out, Compute(executor="loop"))
    made: list[str] = []
    for name in ("local", "architectures"):
        original = getattr(components, name)
        monkeypatch.setattr(components, name, lambda *a, f=original, n=name, **k: (made.append(n), f(*a, **k))[1])
    built = ComponentKind.of
    monkeypatch.setattr(ComponentKind, "of", lambda self, recipe: (made.append(self.key), built(self, recipe))[1])
    execute(recipe, out, Compute(executor="loop")) if command == "execute" else reopen(out)
    assert sorted(made) == sorted(["architectures", "local", *(part.key for part in COMPONENT_KINDS)])


OWN_EXECUTOR = """
import fedhead as fh
from fedhead.executors.loop import Loop

class Slow(fh.Executor):
    def train(self, job):
        return Loop().train(job)
"""


def test_the_user_s_own_executor_is_found_beside_the_recipe_and_needed_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    (here / "mine.py").write_text(OWN_EXECUTOR)
    (here / "recipe.yaml").write_text(RECIPE.override(["rounds=2"]).to_yaml())
    monkeypatch.chdir(elsewhere)
    recipe, out = load(here / "recipe.yaml"), tmp_path / "run"
    settings = Compute(executor="mine.py:Slow")

    def stop(row: Row) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(recipe, out, settings, observers=[RowFunction(stop)])
    (here / "mine.py").rename(here / "moved.py")
    with pytest.raises(BadInput, match=r"needs the executor mine.py:Slow, which was in .*mine.py: put the file back"):
        execute(recipe, out, resume=True)
    (here / "mine.py").write_text(OWN_EXECUTOR + "# changed")
    with pytest.raises(BadInput, match=r"mine.py \(executor mine.py:Slow\) changed"):
        execute(recipe, out, resume=True)
    (here / "moved.py").rename(here / "mine.py")
    assert execute(recipe, out, resume=True)["executor"] == "mine.py:Slow"
    assert reopen(out).executor.name == "mine.py:Slow"


def test_a_folder_that_is_taken_is_refused_before_any_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_data, "federation", lambda *_: pytest.fail("data was read"))
    RunFolder.create(tmp_path / "run", RECIPE)
    with pytest.raises(BadInput, match="holds an unfinished run already"):
        execute(RECIPE, tmp_path / "run", Compute(device="cpu"))


def test_a_run_that_was_killed_before_its_first_file_is_begun_anew(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".config.yaml.abc").write_text("half")
    assert not RunFolder.holds_run(out)
    assert execute(RECIPE.override(["rounds=1"]), out, Compute(executor="loop"), resume=True)["rounds"] == 1
    assert RunFolder.holds_run(out)


def test_a_file_in_place_of_a_run_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(BadInput, match="is a file, not a folder"):
        execute(RECIPE, tmp_path / "run", resume=True)


def test_a_metric_without_a_value_is_said_in_the_result_and_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = ["digits", "rounds=1", "subset=200", "metrics=[worst_client, f1]", "--out", str(tmp_path / "run")]
    for more in ([], ["--resume"]):  # the second only reads the result
        assert call(["run", *recipe, *more]) == 0
        shown = capsys.readouterr().out
        assert "worst_client – (no client has its own test samples: set client_test)" in shown
        assert re.search(r"^f1 +0\.\d{4}$", shown, flags=re.MULTILINE)
    result = RunFolder.open(tmp_path / "run").result()
    assert result is not None
    assert result["metrics"]["worst_client"] is None
    assert np.sum(result["confusion"]) == 360
    assert result["train_loss"] > 0
    assert result["test_loss"] > 0
