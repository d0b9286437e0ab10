"""The promise: every method, stage and partition passes the checks that users run on their own."""

from __future__ import annotations

import pytest

from fedhead.data.partition import IID, CappedDirichlet, Dirichlet, EqualDirichlet, Partition, Skewed
from fedhead.methods import METHODS
from fedhead.models.registry import build
from fedhead.stages import STAGES
from fedhead.testing import check_method, check_model, check_partition, check_stage

QUICK = {"ccvr": {"samples": 20, "epochs": 2}, "finetune_ccvr": {"epochs": 2}, "finetune_etf": {"iterations": 1}}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method(name: str) -> None:
    done = check_method(METHODS[name])
    assert {check.name for check in done if check.skipped is None} >= {"hooks", "padding", "executors", "checkpoint"}


@pytest.mark.parametrize("name", sorted(STAGES))
def test_every_stage(name: str) -> None:
    done = check_stage(STAGES[name](**QUICK.get(name, {})))
    assert {check.name for check in done if check.skipped is None} >= {"hooks", "padding", "executors", "checkpoint"}


@pytest.mark.parametrize(
    "partition", [IID(), Dirichlet(0.1), CappedDirichlet(0.5, minimum=1), EqualDirichlet(0.1), Skewed(2)], ids=str
)
def test_every_partition(partition: Partition) -> None:
    check_partition(partition)


def test_a_model_and_a_function_that_builds_one() -> None:
    check_model(build("mlp", (1, 6, 6), 3))
    check_model(lambda shape, classes: build("digitscnn", shape, classes, channels=4), input_shape=(1, 8, 8))
