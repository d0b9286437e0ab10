"""Training begins uncompiled and changes over when the compiler is ready; the GPU and the compiler are stood in for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from gpu_stub import HeldCompiler, stand_in
from same_trees import assert_same
from simulations import make_simulation
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.executors.client.client_round import Trainer, local_round, train_eagerly
from fedhead.executors.client.job import Job
from fedhead.executors.compiling import step
from fedhead.executors.stack import graph_runner
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.vectorize import VmapVectorizer
from fedhead.methods import METHODS


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """No GPU, no tracing, and compiled steps that are the plain ones; whether each had run before it was compiled."""
    made: list[bool] = []

    def compile_step(function: Callable[..., None], *_: object) -> Callable[..., None]:
        made.append(bool(_[-1]))
        return lambda *arguments: function(*arguments)

    monkeypatch.setattr(graph_runner, "compile_step", compile_step)
    monkeypatch.setattr(graph_runner, "trace", lambda function, arguments: object())
    monkeypatch.setattr(graph_runner, "is_known", lambda graph, forms: False)
    stand_in(monkeypatch)
    return made


@cache
def first_job(name: str) -> Job:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9))
    method = METHODS[name]()
    settings: dict[str, Any] = {"rounds": 3, "local": local, "dtype": torch.float64}
    simulation = make_simulation(federation(), [network("batch", method.head)], method, **settings)
    job = simulation.jobs(method, simulation.server, simulation.states, simulation.clients.holders, 1)[0]
    return job.take(sorted(range(len(job.clients)), key=lambda k: -len(job.indices[k]))[-3:])


def trained(job: Job, trainer: Trainer) -> Tree:
    return local_round(job.program, job.stacked_inputs(), job.stacked_batches(), VmapVectorizer(), trainer).send


@cache
def expected(name: str) -> Tree:
    return trained(first_job(name), train_eagerly)


def train(trainer: Graphs, number: int, asked: bool | None = None, name: str = "fedavg") -> bool:
    """Train a round, whose numbers must be those of the plain steps; returns whether its steps were compiled."""
    trainer.begin_round(number, asked)
    assert_same(trained(first_job(name), trainer), expected(name), atol=1e-11, rtol=1e-10)
    return trainer.compiled


def test_steps_change_over_at_the_beginning_of_a_round(compiled: list[bool]) -> None:
    compiler = HeldCompiler()
    trainer = Graphs(slots=2, compiler=compiler)
    assert not train(trainer, 1)
    assert not train(trainer, 2)
    assert len(compiler.made) == 1
    compiler.made[0].set_result(None)
    assert not train(trainer, 2), "never in the middle of a round"
    waited = trainer.compile_seconds
    assert not compiled
    assert train(trainer, 3)
    assert train(trainer, 4)
    assert compiled == [True], "once, without building custom kernels again"
    assert trainer.compile_seconds > waited
    runner = next(iter(trainer._runners.values()))
    assert set(runner.graphs) == {True}, "the uncompiled graphs are released"


def test_all_phases_change_over_together(compiled: list[bool]) -> None:
    compiler = HeldCompiler()
    trainer = Graphs(slots=2, compiler=compiler)
    assert not train(trainer, 1, name="fedrep")
    first, second = compiler.made
    first.set_result(None)
    assert not train(trainer, 2, name="fedrep")
    second.set_result(None)
    assert train(trainer, 3, name="fedrep")
    assert compiled == [True, True]


def test_a_compiled_step_that_fails_when_it_runs_is_replaced_by_the_plain_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(first: torch.Tensor, *others: torch.Tensor) -> None:
        first.fill_(7.0)  # what it has changed until then must not count
        raise AssertionError("expected another layout")

    monkeypatch.setattr(graph_runner, "compile_step", step.compile_step)
    monkeypatch.setattr(step, "trace", lambda function, arguments: object())
    monkeypatch.setattr(step, "compile_graph", lambda *_: fails)
    trainer = Graphs(slots=2)
    assert not train(trainer, 1)
    assert not train(trainer, 2)
    assert "expected another layout" in caplog.text


def test_a_step_in_the_cache_is_compiled_at_once(compiled: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_runner, "is_known", lambda graph, forms: True)
    compiler = HeldCompiler()
    assert train(Graphs(slots=2, compiler=compiler), 1)
    assert compiled == [False]
    assert not compiler.made


def test_without_a_compiler_in_the_background_steps_are_compiled_first(compiled: list[bool]) -> None:
    assert train(Graphs(slots=2), 1)
    assert compiled == [False]
    assert not train(Graphs(slots=2, compile=False), 1)


@pytest.mark.parametrize("tracing", [False, True])
def test_where_the_compiler_fails_training_goes_on_without_it(
    tracing: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reason = f"no registers left, tracing {tracing}"  # a warning is given once per text
    compiler = HeldCompiler()
    trainer = Graphs(slots=2, compiler=compiler)
    if tracing:

        def fails(*_: object) -> None:
            raise ValueError(reason)

        monkeypatch.setattr(graph_runner, "trace", fails)
    assert not train(trainer, 1)
    for one in compiler.made:
        one.set_exception(RuntimeError(reason))
    assert not train(trainer, 2)
    assert not train(trainer, 3)
    assert reason in caplog.text
    assert len(caplog.records) == 1
    assert not trainer.compile


def test_a_resumed_run_is_compiled_from_the_recorded_round_on(compiled: list[bool]) -> None:
    compiler = HeldCompiler()
    trainer = Graphs(slots=2, compiler=compiler)
    assert not train(trainer, 7, asked=False)
    compiler.made[0].set_result(None)
    assert not train(trainer, 8, asked=False), "it was not yet"
    assert train(trainer, 9, asked=True)

    late = Graphs(slots=2, compiler=(slow := HeldCompiler()))
    assert not train(late, 8, asked=False)
    threading.Timer(0.05, slow.made[0].set_result, [None]).start()
    assert train(late, 9, asked=True), "it waits for the compiler"
    assert train(Graphs(slots=2, compiler=HeldCompiler()), 9, asked=True), "and compiles here if nobody else does"
    assert compiled == [True, True, False]


def test_a_long_stage_changes_over_between_its_phases(compiled: list[bool]) -> None:
    compiler = HeldCompiler()
    trainer = Graphs(slots=2, compiler=compiler)
    train(trainer, 4)
    runner = next(iter(trainer._runners.values()))
    runner.of_stage = True
    compiler.made[0].set_result(None)
    train(trainer, 4)
    assert compiled == [True]
