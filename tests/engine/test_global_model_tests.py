"""The models of several runs tested in one stack: each gets the results that it has when tested alone."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from simulations import make_simulation
from small import federation, network
from torch import Tensor

import fedhead as fh
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Output
from fedhead.data.pool import Pool
from fedhead.engine.clients import global_model_tests
from fedhead.engine.clients.global_model_tests import global_predictions
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.simulation import Simulation
from fedhead.methods import METHODS
from fedhead.methods.fedavg import FedAvg
from fedhead.metrics import predictions

LOCAL = LocalTraining(epochs=1, batch_size=4)


def simulation(norm: str = "batch") -> Simulation:
    return make_simulation(federation(), [network(norm)], METHODS["fedavg"](), rounds=1, local=LOCAL)


def predictions_of(made: Simulation, method: FedAvg | None = None, pool: Pool | None = None) -> predictions.Predictions:
    return global_predictions(
        method or made.experiment.method, made.server["model"], made.task, pool or made.test, keep_scores=True
    )


class Scaled(FedAvg):
    """Replaces an entry of the weights that it is given."""

    def scores(self, out: Output, w: fh.Weights, task: Task) -> Tensor:
        w["classifier.bias"] = w["classifier.bias"] + 1
        return out.logits * w["classifier.bias"].sum()


class ScaledInPlace(FedAvg):
    def scores(self, out: Output, w: fh.Weights, task: Task) -> Tensor:
        w["classifier.bias"] += 1
        return out.logits * w["classifier.bias"].sum()


@pytest.mark.parametrize("method", [Scaled, ScaledInPlace])
def test_scores_that_write_into_the_weights_are_refused(method: type[FedAvg]) -> None:
    with pytest.raises(BadInput, match=rf"{method.__name__}.scores writes into w\['classifier.bias'\].*a new tensor"):
        predictions_of(simulation(), method())


def test_the_last_rounds_test_gives_the_confusion_matrix_too(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    plainly = predictions.predict
    monkeypatch.setattr(
        global_model_tests, "predict", lambda *args, **named: calls.append(1) or plainly(*args, **named)
    )
    result = rounds.run(simulation())
    assert len(calls) == 1
    assert result.confusion == rounds._confusion(result.transport)
    assert "confusion" not in result.rows[-1]


class Full(FedAvg):
    """Stands for a device that holds only so many samples."""

    sizes: ClassVar[list[int]] = []

    def __init__(self, most: int):
        object.__setattr__(self, "most", most)

    def scores(self, out: Output, w: fh.Weights, task: Task) -> Tensor:
        self.sizes.append(len(out.logits))
        if len(out.logits) > self.most:
            raise torch.OutOfMemoryError("full")
        return out.logits


def test_where_memory_runs_out_fewer_samples_are_tested_at_a_time_from_then_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = simulation()
    assert made.test is not None
    count, device = len(made.test), Full(5)
    plain = predictions_of(made).scores
    torch.testing.assert_close(predictions_of(made, device).scores, plain, rtol=1e-4, atol=1e-5)
    assert device.sizes[:3] == [count, count // 2, count // 4]
    assert f"out of memory with {count} samples at once, continuing with {count // 2}" in caplog.text
    device.sizes.clear()
    predictions_of(made, device)
    assert max(device.sizes) <= 5
    with pytest.raises(torch.OutOfMemoryError):
        predictions_of(made, Full(0))


def test_a_model_that_drops_the_rows_of_a_single_sample_is_told_so() -> None:
    class Squeezed(FedAvg):
        def scores(self, out: Output, w: fh.Weights, task: Task) -> Tensor:
            return out.logits.squeeze()

    made = simulation()
    assert made.test is not None
    with pytest.raises(BadInput, match=r"Squeezed: the scores of a test batch of 1 have the shape \[3\]"):
        predictions_of(made, Squeezed(), made.test.take(torch.tensor([0])))
