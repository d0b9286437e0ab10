"""The models of several runs tested in one stack: each gets the results that it has when tested alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from small import federation, network
from torch import Tensor, nn

import fedhead as fh
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Output
from fedhead.engine.clients import global_model_tests
from fedhead.engine.clients.global_model_tests import JointModelTests, ModelTest
from fedhead.engine.clients.server import evaluate_global_model
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.stack import map_clients
from fedhead.executors.stack.map_clients import MemoryBudget
from fedhead.methods import METHODS
from fedhead.methods.fedavg import FedAvg
from fedhead.metrics import predictions
from fedhead.metrics.registry import find

LOCAL = LocalTraining(epochs=1, batch_size=4)


def simulation(norm: str = "batch") -> Simulation:
    return Simulation(federation(), [network(norm)], METHODS["fedavg"](), rounds=1, local=LOCAL)


def made_tests(made: Simulation, count: int, keep_scores: bool = False) -> list[ModelTest]:
    assert made.test is not None
    generator = torch.Generator().manual_seed(0)
    model = made.server["model"]
    models = [model.map(lambda t: t + 0.1 * torch.rand(t.shape, generator=generator)) for _ in range(count)]
    return [ModelTest(made.method, one, made.task, made.test, keep_scores=keep_scores) for one in models]


def same(found: Sequence[predictions.Predictions], tests: Sequence[ModelTest]) -> None:
    for mine, test in zip(found, tests, strict=True):
        alone = test.run()
        assert mine.confusion.tolist() == alone.confusion.tolist()
        assert mine.predicted.equal(alone.predicted)
        assert mine.loss == pytest.approx(alone.loss, rel=1e-5)
        torch.testing.assert_close(mine.losses, alone.losses, rtol=1e-4, atol=1e-5)
        assert (mine.scores is None) == (alone.scores is None)
        if mine.scores is not None:
            torch.testing.assert_close(mine.scores, alone.scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_stack_of_models_predicts_as_each_does_alone(norm: str) -> None:
    tests = made_tests(simulation(norm), 5, keep_scores=norm == "batch")
    joint = JointModelTests(MemoryBudget(clients=3, samples=12))  # two stacks, a few samples at a time
    same(joint(tests), tests)
    assert not joint.budget.one_by_one


def test_rows_of_records_are_those_of_single_tests() -> None:
    made = simulation()
    metrics = find(["f1", "ece"])
    (test,) = made_tests(made, 1)
    server = made.server.replace(model=test.model)

    def row(tested: Any) -> dict[str, Any]:
        return evaluate_global_model(
            made.method, server, made.task, made.test, metrics=metrics, final=True, test=tested
        )

    mine, alone = row(lambda one: JointModelTests()([one, one])[1]), row(ModelTest.run)
    assert mine.keys() == alone.keys()
    for name in ("accuracy", "per_class", "confusion"):
        assert mine[name] == alone[name]
    assert mine["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-6)
    assert mine["metrics"] == pytest.approx(alone["metrics"], rel=1e-4)


def test_only_models_that_compute_alike_on_the_same_samples_share_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    stacked = JointModelTests._stacked
    monkeypatch.setattr(
        JointModelTests, "_stacked", lambda self, tests: widths.append(len(tests)) or stacked(self, tests)
    )
    made, other = simulation(), simulation("group")
    first = made_tests(made, 2)
    fewer = replace(first[0], pool=first[0].pool.take(torch.arange(4)))
    tests = [*first, *made_tests(other, 2), fewer, replace(first[0], bf16=True)]
    same(JointModelTests()(tests), tests)
    assert widths == [2, 2]


class Scaled(FedAvg):
    """Replaces an entry of the weights that it is given."""

    def scores(self, out: Output, w: fh.Weights, task: Task) -> Tensor:
        w["classifier.bias"] = w["classifier.bias"] + 1
        return out.logits * w["classifier.bias"].sum()


class ScaledInPlace(FedAvg):
    def scores(self, out: Output, w: fh.Weights, task: Task) -> Tensor:
        w["classifier.bias"] += 1
        return out.logits * w["classifier.bias"].sum()


def test_scores_may_replace_entries_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = made_tests(simulation(), 2, keep_scores=True)
    logits = [test.run().scores for test in plain]
    monkeypatch.setattr(map_clients, "SINGLE_SAMPLES", 4)  # in several batches
    tests = [replace(test, algorithm=Scaled()) for test in plain]
    for found in ([test.run() for test in tests], JointModelTests()(tests)):
        for mine, theirs, test in zip(found, logits, plain, strict=True):
            assert theirs is not None
            scale = (test.model["classifier.bias"] + 1).sum()
            torch.testing.assert_close(mine.scores, theirs * scale, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("joint", [True, False])
def test_scores_that_write_into_the_weights_are_refused(joint: bool) -> None:
    tests = [replace(test, algorithm=ScaledInPlace()) for test in made_tests(simulation(), 2)]
    with pytest.raises(BadInput, match=r"ScaledInPlace.scores writes into w\['classifier.bias'\].*a new tensor"):
        JointModelTests()(tests) if joint else tests[0].run()


class OneByOne(nn.Module):
    """A layer that vmap can't map."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.flatten()[0] * 0 + 1)


def test_models_that_cannot_be_stacked_are_tested_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    made = simulation()
    made.task.model.extractor = nn.Sequential(made.task.model.extractor, OneByOne())
    test = made_tests(made, 1)[0]
    weights = fh.Weights({name.replace("extractor.", "extractor.0."): t for name, t in test.model.items()})
    tests = [replace(test, model=weights), replace(test, model=weights)]
    joint = JointModelTests()
    with caplog.at_level(logging.WARNING, "fedhead"):
        same(joint(tests), tests)
    assert joint.budget.one_by_one
    assert "testing models" in caplog.text


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
    (plain,) = made_tests(simulation(), 1, keep_scores=True)
    count, device = len(plain.pool), Full(5)
    test = replace(plain, algorithm=device)
    same([test.run()], [plain])
    assert device.sizes[:3] == [count, count // 2, count // 4]
    assert f"out of memory with {count} samples at once, continuing with {count // 2}" in caplog.text
    device.sizes.clear()
    test.run()
    assert max(device.sizes) <= 5
    with pytest.raises(torch.OutOfMemoryError):
        replace(test, algorithm=Full(0)).run()


def test_a_model_that_drops_the_rows_of_a_single_sample_is_told_so() -> None:
    class Squeezed(FedAvg):
        def scores(self, out: Output, w: fh.Weights, task: Task) -> Tensor:
            return out.logits.squeeze()

    (test,) = made_tests(simulation(), 1)
    test = replace(test, algorithm=Squeezed(), pool=test.pool.take(torch.tensor([0])))
    with pytest.raises(BadInput, match=r"Squeezed: the scores of a test batch of 1 have the shape \[3\]"):
        test.run()
