"""The promise: every method, stage and partition passes the checks that users run on their own."""

from __future__ import annotations

import pytest
from tiers import quick
from torch import nn

from fedhead.methods import METHODS
from fedhead.models.registry import FeatureExtractor, build
from fedhead.stages import STAGES
from fedhead.testing import check_method, check_model, check_stage

QUICK = {"ccvr": {"samples": 20, "epochs": 2}, "finetune_ccvr": {"epochs": 2}, "finetune_etf": {"iterations": 1}}


@pytest.mark.parametrize("name", quick(sorted(METHODS), "scaffold"))
def test_every_method(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    done = check_method(METHODS[name])
    assert capfd.readouterr().err == ""  # sites that have nothing to train on are part of the check
    assert {check.name for check in done if check.skipped is None} >= {"hooks", "padding", "executors", "checkpoint"}


@pytest.mark.parametrize("name", quick(sorted(STAGES), "ccvr"))
def test_every_stage(name: str) -> None:
    done = check_stage(STAGES[name](**QUICK.get(name, {})))
    assert {check.name for check in done if check.skipped is None} >= {"hooks", "padding", "executors", "checkpoint"}


def test_a_model_and_a_function_that_builds_one() -> None:
    check_model(build("mlp", (1, 6, 6), 3))
    check_model(lambda shape, classes: build("digitscnn", shape, classes, channels=4), input_shape=(1, 8, 8))
    check_model("mlp(hidden=[5])", input_shape=(4,), classes=3)
    check_model(plain_function, input_shape=(4,))


def plain_function(input_shape: tuple[int, ...], width: int = 5) -> FeatureExtractor:
    """As plugins write models."""
    return FeatureExtractor(nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.ReLU()), width)
