"""On a GPU: a run that begins uncompiled and changes over to compiled steps keeps its numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from simulations import make_simulation, run
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.bench.benchmark import WORKLOADS
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.observer import FinishedRun, Snapshot
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.compiling.process import CompilerProcess
from fedhead.executors.compiling.step import TensorForm
from fedhead.executors.stack import graph_runner
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.models.precision import set_precision
from gpu import GPU

pytestmark = [*GPU, pytest.mark.filterwarnings("ignore")]  # the compiler's own: as errors they would stop it
LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.02, momentum=0.9, weight_decay=1e-3))
ROUNDS, AT = 3, 2  # how many rounds, and from which one on steps are compiled


class Ready:
    """A compiler in the background that is done at once; steps change over when a run says so."""

    def submit(self, graph: torch.fx.GraphModule, forms: Sequence[TensorForm]) -> Future[None]:
        made = Future[None]()
        made.set_result(None)
        return made


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that an earlier test has compiled would be compiled from the first round on."""
    monkeypatch.setattr(graph_runner, "is_known", lambda graph, forms: False)


def changing_over() -> Stack:
    return Stack(graphs=Graphs(compiler=Ready()))


def uncompiled() -> Stack:
    return Stack(graphs=Graphs(compile=False))


def small(name: str, seed: int = 0) -> Simulation:
    set_precision("fp32")
    settings = {"rounds": ROUNDS, "local": LOCAL, "device": torch.device("cuda"), "seed": seed}
    return make_simulation(federation(), [network("batch", METHODS[name].head)], METHODS[name](), **settings)


def simplecnn() -> Simulation:
    return WORKLOADS["simplecnn"].simulation(4, 6, torch.device("cuda"))


def train(simulation: Simulation, executor: Executor, compiled_from: int | None = AT) -> Simulation:
    """Train all rounds, with compiled steps from a round on."""
    simulation.compiled_from = compiled_from
    for number in range(1, ROUNDS + 1):
        train_round(simulation.using(executor), number)
        if compiled_from is not None:
            assert executor.report().compiled == (number >= compiled_from), number
    return simulation


def close(one: Simulation, other: Simulation, tolerance: float = 1e-4) -> None:
    pairs = [(one.server, other.server), *((one.states[k], other.states[k]) for k in one.states.kept)]
    for mine, theirs in pairs:
        for path, value in mine.leaves().items():
            apart = (value.double() - theirs.leaves()[path].double()).norm()
            assert apart <= tolerance * value.double().norm().clamp_min(1.0), path


@pytest.mark.parametrize(
    "made", [simplecnn, lambda: small("fedetf"), lambda: small("fedrep")], ids=["simplecnn", "fedetf", "fedrep"]
)
def test_a_run_that_changes_over_stays_within_tolerance(made: Callable[[], Simulation]) -> None:
    stack = changing_over()
    found = train(made(), stack)
    assert stack.graphs.compile, "the step could not be compiled"
    close(found, train(made(), uncompiled(), None))


def same(one: FinishedRun, other: FinishedRun) -> None:
    pairs: list[tuple[Tree, Tree]] = [(one.server, other.server)]
    pairs += [(one.clients[k], other.clients[k]) for k in other.clients]
    for mine, theirs in pairs:
        for a, b in zip(mine.tensors(), theirs.tensors(), strict=True):
            assert torch.equal(a.cpu(), b.cpu())


def test_a_run_that_is_resumed_has_the_same_numbers() -> None:
    """From before the round in which it changed over, and from after it."""
    found: list[Snapshot] = []
    whole = small("scaffold").using(changing_over())
    whole.compiled_from = AT
    expected = run(whole, on_round=found.append)
    assert expected.compiled_from == AT
    for snapshot in found[:2]:
        resumed = run(small("scaffold").using(changing_over()), resume=replace(snapshot, compiled_from=AT))
        same(resumed, expected)
        assert resumed.compiled_from == AT


def test_another_process_compiles_while_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty cache; the number of rounds is that which fits into the time that the compiler takes."""
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    stack = Stack(graphs=Graphs(compiler=CompilerProcess()))
    simulation = small("fedavg").using(stack)
    hits = counters["inductor"]["fxgraph_cache_hit"]
    number, begin = 0, time.monotonic()
    while not stack.report().compiled and time.monotonic() - begin < 240:
        number += 1
        before = stack.report().compile_seconds
        train_round(simulation, number)
        time.sleep(0.2)
    changing = stack.report().compile_seconds - before
    assert stack.graphs.compile, "the step could not be compiled"
    assert stack.report().compiled, "the compiler was not done in four minutes"
    assert number > 1
    assert counters["inductor"]["fxgraph_cache_hit"] > hits, "what the other process compiled was not found"
    print(f"compiled from round {number} on, after {time.monotonic() - begin:.1f} s; changing over {changing:.1f} s")
    train_round(simulation, number + 1)
