"""A stage on a loaded run: its numbers are those of the same stage on the run that was just trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.metrics.records import StageResult
from fedhead.recipes.experiment import prepare
from fedhead.recipes.recipe import load
from fedhead.runs.run import execute

SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "participation": 0.5,
    "lr": 0.1,
    "uploads": ["clip(0.1)", "half"],
    "aggregator": "median",
    "sampler": "round_robin",
    "stragglers": "partial(0.5)",
    "outliers": "clip(norm=1.5)",
}


def federation() -> fh.Federation:
    x, y = load_digits(return_X_y=True)
    settings = {"clients": 4, "seed": 0, "test": (x[400:500] / 16, y[400:500]), "client_test": 0.2}
    return fh.Federation.from_arrays(x[:400] / 16, y[:400], "dirichlet(1.0)", **settings)


def assert_equal(one: StageResult, other: StageResult) -> None:
    for name, t in one.server.leaves().items():
        assert torch.equal(t, other.server.leaves()[name]), name
    rows = [{k: v for k, v in result.metrics.items() if k != "seconds"} for result in (one, other)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("stage", ["finetune", "ccvr(samples=20, epochs=1)"])
def test_of_a_python_run(stage: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    fresh = fh.run(federation(), "mlp(hidden=[16])", "fedprox", **SETTINGS, executor="loop", device="cpu", out=out)
    loaded = fh.load(out, federation=federation(), device="cpu")
    experiment = loaded.trained.with_data().experiment
    assert [step.name for step in experiment.uploads] == ["clip", "half"]
    parts = (experiment.aggregator, experiment.sampler, experiment.outliers, experiment.stragglers)
    assert all(part is not None for part in parts)
    assert_equal(fresh.calibrate(stage), loaded.calibrate(stage))


def test_a_calibrated_model_is_taken_by_its_stage(tmp_path: Path) -> None:
    data = federation()
    training: dict[str, Any] = {"rounds": 2, "local_epochs": 5, "batch_size": 32, "lr": 0.05, "momentum": 0.9}
    result = fh.run(data, "mlp(hidden=[16])", **training, executor="loop", device="cpu")
    with pytest.raises(BadInput, match=r"ccvr was not run, nor any other stage; run it with result\.calibrate"):
        result.module(stage="ccvr")
    first = result.calibrate(fh.CCVR(samples=20, epochs=1))
    later = result.calibrate(fh.CCVR(samples=200, epochs=10))
    assert first.accuracy != later.accuracy
    assert data.test is not None
    predicted = result.predict(data.test.x, stage="ccvr")
    assert (predicted == data.test.y.numpy()).mean() * 100 == pytest.approx(later.accuracy)
    result.export(tmp_path / "model.safetensors", stage="ccvr")
    assert result.accuracy != later.accuracy  # that of the rounds stays


def test_of_a_recipe_run(tmp_path: Path) -> None:
    words = [f"{key}={value}" for key, value in SETTINGS.items() if key != "uploads"]
    recipe = load("digits", [*words, "uploads=[clip(0.1), half]", "subset=200", "clients=4", "stages=[finetune]",
                             "client_test=0.2"])  # fmt: skip
    execute(recipe, tmp_path / "run", Compute(executor="loop", device="cpu"))
    loaded = fh.load(tmp_path / "run", device="cpu")
    trained = loaded.trained.with_data()
    assert trained.experiment.uploads == prepare(recipe)[0].uploads
    stored = loaded.stages["finetune"]
    again = loaded.calibrate("finetune")
    for name, t in stored.server.leaves().items():
        assert torch.equal(t, again.server.leaves()[name])
    assert stored.metrics["personal"] == again.metrics["personal"]


def test_an_upload_that_no_recipe_can_hold_is_asked_for(tmp_path: Path) -> None:
    class Own(fh.Upload):
        pass

    out = tmp_path / "run"
    given = {"rounds": 1, "executor": "loop", "device": "cpu", "out": out}
    fresh = fh.run(federation(), "mlp(hidden=[16])", uploads=[Own()], **given)
    loaded = fh.load(out, federation=federation(), device="cpu")
    assert loaded.weights is not None  # which needs no upload
    with pytest.raises(BadInput, match=r"its own upload .*give the same, fedhead.load\(.*uploads=…"):
        loaded.calibrate("finetune")
    again = fh.load(out, federation=federation(), uploads=[Own()], device="cpu")
    assert_equal(fresh.calibrate("finetune"), again.calibrate("finetune"))
