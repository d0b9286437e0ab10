"""The metrics of a run, from a history written by hand."""

from __future__ import annotations

import pytest
import torch

from fedhead.core.tree.tree import Tree
from fedhead.engine.clients import evaluation
from fedhead.metrics.predictions import Predictions
from fedhead.metrics.records import Row, RunMetrics, StageResult


class Written(RunMetrics):
    """A run that was never run."""

    executor = "loop"

    def __init__(self, history: list[Row], stages: dict[str, Row], last_rounds: int = 1):
        self.rows, self.last_rounds = history, last_rounds
        self._stages = stages

    @property
    def stage_rows(self) -> dict[str, Row]:
        return self._stages


def row(up: int, participants: int, **metrics: float | None) -> Row:
    return {"bytes_up": up, "bytes_down": 2 * up, "participants": participants, "seconds": 0.5, **metrics}


HISTORY = [
    row(10, 2, accuracy=10.0, personal=50.0),
    row(10, 2, accuracy=20.0, personal=60.0),
    row(16, 4, accuracy=60.0, personal=None),
    row(16, 4),  # a round that was not evaluated
]
STAGES: dict[str, Row] = {
    "ccvr": {"accuracy": 70.0, "personal": 75.0, "bytes_up": 3, "bytes_down": 5, "seconds": 0.25},
    "finetune": {"accuracy": None, "personal": 80.0, "bytes_up": 0, "bytes_down": 1, "seconds": 0.25},
}


def test_accuracies_are_those_of_the_last_evaluated_rounds() -> None:
    found = Written(HISTORY, {}, last_rounds=2)
    assert (found.accuracy, found.accuracy_mean, found.personal) == (60.0, 40.0, 60.0)
    assert Written(HISTORY, {}, last_rounds=9).accuracy_mean == 30.0
    nothing = Written([row(1, 1)], {})
    assert (nothing.accuracy, nothing.accuracy_mean, nothing.personal) == (None, None, None)


def test_a_stage_has_the_accuracies_of_the_global_model_and_of_the_clients() -> None:
    stages = {name: StageResult(name, Tree(), None, metrics, None) for name, metrics in STAGES.items()}
    assert {name: (stage.accuracy, stage.personal) for name, stage in stages.items()} == {
        "ccvr": (70.0, 75.0),
        "finetune": (None, 80.0),
    }


def test_bytes_and_seconds_are_of_rounds_and_stages_but_a_clients_bytes_of_rounds() -> None:
    found = Written(HISTORY, STAGES)
    assert (found.bytes_up, found.bytes_down, found.seconds) == (55, 110, 2.5)
    assert found.client_bytes == {"up": pytest.approx(52 / 12), "down": pytest.approx(104 / 12)}
    assert Written([], {}).client_bytes == {}


def test_what_was_not_tested_has_no_accuracy() -> None:
    def test(y: list[int], predicted: list[int]) -> Predictions:
        losses = torch.arange(len(y), dtype=torch.float64)
        return Predictions(torch.tensor(y, dtype=torch.int64), torch.tensor(predicted, dtype=torch.int64), losses, 4)

    found = test([0, 0, 2, 2], [0, 1, 2, 2])
    assert evaluation.per_class(found) == [50.0, None, 100.0, None]
    assert (evaluation.accuracy(found), evaluation.loss(found)) == (75.0, 1.5)
    assert (evaluation.accuracy(test([], [])), evaluation.loss(test([], []))) == (None, None)
    assert evaluation.nanmean([40.0, None, 60.0, float("nan")]) == 50.0
    assert evaluation.nanmean([40.0, None, 60.0], [1, 5, 3]) == 55.0
    assert evaluation.nanmean([None]) is evaluation.nanmean([None], [1]) is evaluation.nanmean([40.0], [0]) is None
