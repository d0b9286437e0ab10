"""The traced step, as CUDA graphs replay it, against the plain one; all of it on the CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from same_trees import assert_same
from simulations import make_simulation
from small import federation, network
from tiers import quick
from torch import Tensor

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.engine.rounds.rounds import train_round
from fedhead.executors.client.client_round import Carry, PhaseRun, Trainer, local_round, train_eagerly
from fedhead.executors.client.job import Job
from fedhead.executors.compiling.process import CompilerProcess
from fedhead.executors.compiling.step import TensorForm, compile_step, is_known, short_descriptions, trace
from fedhead.executors.stack import graph_runner, step_graphs
from fedhead.executors.stack.graph_runner import GraphRunner
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.slots import choose_slots, plan
from fedhead.executors.stack.stack import Stack
from fedhead.executors.stack.step_graphs import StepGraphs, without_rows
from fedhead.executors.stack.vectorize import VmapVectorizer
from fedhead.methods import METHODS
from fedhead.models.precision import set_precision


class Replayed(Graphs):
    """The runners without a GPU: the step is traced once and called again and again."""

    def __call__(self, phase_run: PhaseRun) -> Carry:
        phase_run = without_rows(phase_run)
        slots = self.slots or choose_slots(phase_run.batches.lengths())
        runner = GraphRunner(self, phase_run, slots)
        runner.graphs = {True: _Traced(runner)}  # type: ignore[dict-item]  # replay() is all it needs
        return runner.train(phase_run)


class _Traced:
    def __init__(self, runner: GraphRunner):
        function, self.arguments = runner._flat()
        self.graph = trace(function, self.arguments)

    def replay(self, count: int) -> None:
        for _ in range(count):
            self.graph(*self.arguments)


def prepared(name: str, norm: str) -> Job:
    """The second round of a few clients, longest first."""
    local = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=1e-3))
    simulation = make_simulation(
        federation(), [network(norm, METHODS[name].head)], METHODS[name](), rounds=2, local=local, dtype=torch.float64
    )
    train_round(simulation.using(Stack()), 1)
    job = simulation.jobs(
        simulation.experiment.method, simulation.server, simulation.states, simulation.clients.holders, 2
    )[0]
    return job.take(sorted(range(len(job.clients)), key=lambda k: -len(job.indices[k])))


def assert_equals_plain_steps(job: Job, trainer: Trainer) -> None:
    """Train a round with this trainer and with plain steps: what is sent, what is kept and the losses are the same."""
    plain, found = [
        local_round(job.program, job.stacked_inputs(), job.stacked_batches(), VmapVectorizer(), train)
        for train in (train_eagerly, trainer)
    ]
    for mine, theirs in zip(found, plain, strict=True):
        assert_same(mine, theirs, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("norm", ["batch", pytest.param("group", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", quick(sorted(METHODS), "fedavg", "scaffold"))
def test_replayed_steps_equal_plain_ones(name: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of 8, 6, 4 and 2 steps in two slots; the table of batches is filled several times."""
    monkeypatch.setattr(graph_runner, "TABLE_STEPS", 3)
    job = prepared(name, norm)
    assert_equals_plain_steps(job, Replayed(slots=2))


@pytest.mark.slow
@pytest.mark.parametrize("slots", quick([1, 3, 4, 7], 3))
def test_any_number_of_slots_gives_the_same_numbers(slots: int) -> None:
    job = prepared("moon", "batch")
    assert_equals_plain_steps(job, Replayed(slots=slots))


@pytest.mark.parametrize("name", quick(["fedetf", "fedrep", "scaffold"], "scaffold"))
def test_a_paused_client_goes_on_where_it_stopped(name: str) -> None:
    job = prepared(name, "batch").take([0, 1, 2])
    assert any(turn.done for batches in job.stacked_batches() for turn in plan(batches.lengths(), 2).turns)
    assert_equals_plain_steps(job, Replayed(slots=2))


def test_cohorts_of_different_sizes_share_a_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[_Traced] = []
    monkeypatch.setattr(GraphRunner, "_prepare", lambda runner, compiled: made.append(_Traced(runner)) or made[-1])
    trainer = Graphs(slots=2)
    job = prepared("scaffold", "group")
    for clients in ([0, 1, 2, 3], [1, 3], [2]):
        assert_equals_plain_steps(job.take(clients), trainer)
    assert len(made) == 1


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 31])
def test_graphs_of_one_step_and_of_many_make_as_many_steps_as_wanted(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Graph:
        def __init__(self, work: Callable[[], None]):
            self.replay = work
            captures.append(work)

    captures: list[object] = []
    monkeypatch.setattr(step_graphs, "capture", Graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    owner, made = Graphs(), []
    steps = StepGraphs(owner, lambda n: made.extend(range(n)))
    for _ in range(2):
        steps.replay(count)
    assert len(made) == 2 * count
    assert len(captures) == (count >= 8) + (count % 8 > 0), "each graph is captured once, and only if it is needed"
    assert (owner.compile_seconds > 0) == bool(captures)


def test_the_compiler_describes_an_operator_without_all_that_its_arguments_come_from() -> None:
    from torch._inductor.exc import MissingOperatorWithoutDecomp

    class Deep:
        def __str__(self) -> str:
            raise AssertionError("this text would have as many lines as there are paths to here")

    before = MissingOperatorWithoutDecomp.operator_str
    with short_descriptions():
        assert "aten.relu" in MissingOperatorWithoutDecomp.operator_str(torch.ops.aten.relu.default, [Deep()], {})
    assert MissingOperatorWithoutDecomp.operator_str is before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own: as errors they would stop it
@pytest.mark.skipif(shutil.which("g++") is None, reason="on a CPU the compiler needs g++")
def test_a_step_that_another_process_compiled_is_found_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def step(*flat: Tensor) -> None:
        flat[0].add_(flat[1] * torch.arange(3))

    set_precision("fp32")  # as before any run: it decides about the cache too
    arguments = [torch.ones(3), torch.ones(3)]
    graph, forms = trace(step, arguments), [TensorForm.of(t) for t in arguments]
    assert not is_known(graph, forms)
    CompilerProcess().submit(graph, forms).result()
    assert is_known(graph, forms), "another process has compiled it"
    hits = counters["inductor"]["fxgraph_cache_hit"]
    call = compile_step(step, arguments, changed=1)
    assert counters["inductor"]["fxgraph_cache_hit"] == hits + 1
    assert arguments[0].tolist() == [1, 1, 1], "compiling changes nothing"
    call(*arguments)
    assert arguments[0].tolist() == [1, 2, 3]
