"""Lanes without a GPU: streams and graphs are stood in for, what is trained in which lane and when is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpu_stub import stand_in
from simulations import make_simulation
from small import federation, network
from tiers import quick

from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import Clip, Upload
from fedhead.core.training.optimizers import SGD, Adam, AdamW
from fedhead.core.tree.foreach import copy_all
from fedhead.data.federation.federation import Federation
from fedhead.data.pool import Pool, ViewsAhead
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.compiling import step as compiler
from fedhead.executors.compiling.step import trace
from fedhead.executors.lanes import lane_batches, lane_steps
from fedhead.executors.lanes.lane_groups import STEPS_PER_GRAPH
from fedhead.executors.lanes.lanes import Lanes
from fedhead.executors.loop import Loop
from fedhead.executors.stack import step_graphs
from fedhead.methods import METHODS
from fedhead.models.wrap import split

LOCAL = LocalTraining(epochs=3, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=1e-3))


@pytest.fixture(autouse=True)
def captures(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """No GPU; what was captured, in order."""
    return stand_in(monkeypatch)


def trained(name: str, executor: Executor, uploads: Sequence[Upload] = ()) -> Simulation:
    settings = {"rounds": 2, "local": LOCAL, "dtype": torch.float64, "uploads": uploads}
    simulation = make_simulation(federation(), [network("batch", METHODS[name].head)], METHODS[name](), **settings)
    for number in (1, 2):
        train_round(simulation.using(executor), number)
    return simulation


@pytest.mark.slow
@pytest.mark.parametrize("uploads", [(), (Clip(0.05),)], ids=["plain", "clipped"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrep", "fedetf", "fedclassavg"])
def test_lanes_end_where_the_loop_does(name: str, uploads: Sequence[Upload]) -> None:
    same(trained(name, Lanes(), uploads), trained(name, Loop(), uploads))


def test_lanes_train_on_public_samples_too() -> None:
    same(trained("ktpfl", Lanes()), trained("ktpfl", Loop()))


def same(found: Simulation, loop: Simulation, tolerance: float = 1e-10) -> None:
    for mine, theirs in [(found.server, loop.server), *((found.states[k], loop.states[k]) for k in loop.states.kept)]:
        assert mine.leaves().keys() == theirs.leaves().keys()
        for path, value in theirs.leaves().items():
            torch.testing.assert_close(mine.leaves()[path], value, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("traced", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_lanes_end_where_the_loop_does(traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of different numbers of steps share one step, with and without padding; at most it is traced here."""
    made: list[object] = []

    def compiled(function: Callable[..., None], arguments: list[torch.Tensor], changed: int) -> object:
        assert 0 < changed < len(arguments)
        made.append(trace(function, arguments) if traced else function)
        return made[-1]

    monkeypatch.setattr(lane_steps, "compile_step", compiled)
    executor = Lanes(compile=True)
    same(trained("scaffold", executor), trained("scaffold", Loop()))
    assert 0 < len(made) <= 2
    assert executor.report().compiled


def fails(*args: object) -> None:
    raise RuntimeError("expected another layout")


@pytest.mark.parametrize("when", quick(["it is compiled", "it runs"], "it runs"))
def test_lanes_whose_step_can_not_be_compiled_go_on_without(
    when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiler, "trace", lambda function, arguments: object())
    monkeypatch.setattr(compiler, "compile_graph", fails if when == "it is compiled" else lambda *args: fails)
    executor = Lanes(compile=True)
    same(trained("fedavg", executor), trained("fedavg", Loop()))
    assert "expected another layout" in caplog.text
    assert not executor.report().compiled


def test_an_architecture_that_can_not_be_compiled_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def compiled(function: Callable[..., None], arguments: list[torch.Tensor], changed: int) -> object:
        made.append(changed)
        return fails() if len(made) == 1 else function

    monkeypatch.setattr(lane_steps, "compile_step", compiled)
    models = [split(small_model(width), classifier="2") for width in (4, 5)]

    def train(executor: Executor) -> Simulation:
        fed = Federation.from_arrays(np.random.RandomState(0).rand(24, 6), np.arange(24) % 3, "iid", clients=4)
        made = make_simulation(fed, models, METHODS["fedclassavg"](), rounds=1, local=LOCAL, dtype=torch.float64)
        train_round(made.using(executor), 1)
        return made

    executor = Lanes(compile=True)
    same(train(executor), train(Loop()))
    assert len(made) > 1
    assert not executor.report().compiled  # not all


def small_model(width: int) -> torch.nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Linear(width, 4), torch.nn.Linear(4, 3))


def test_graphs_are_captured_in_the_first_round_alone(captures: list[object]) -> None:
    lengths = {-(-len(rows) // LOCAL.batch_size) * LOCAL.epochs for rows in federation().indices if len(rows)}
    assert len(lengths) > 1, "clients must differ in steps, or this says little"
    assert max(lengths) > STEPS_PER_GRAPH
    executor = Lanes()
    simulation = trained("fedavg", executor)
    first = len(captures)
    train_round(simulation.using(executor), 2)
    assert len(captures) == first > 1
    assert executor.report().compile_seconds > 0


@pytest.mark.parametrize("executor", [Lanes, Loop])
@pytest.mark.parametrize("name", quick(["fedavg", "fedclassavg"], "fedclassavg"))
@pytest.mark.parametrize("tensor_cores", [True, False])
def test_convolutions_on_tensor_cores_see_their_channels_last(
    name: str, executor: type[Executor], tensor_cores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of two views in one batch: otherwise each convolution converts what it reads and writes."""
    seen: list[bool] = []

    def look(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, torch.nn.Conv2d):
            seen.extend(t.is_contiguous(memory_format=torch.channels_last) for t in (inputs[0], module.weight))

    convolutions = [torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 5, 3), torch.nn.Flatten()]
    model = split(torch.nn.Sequential(*convolutions, torch.nn.Linear(20, 3)), classifier="4")
    images = np.random.RandomState(0).randint(0, 256, (12, 3, 6, 6)).astype(np.uint8)
    fed = Federation.from_arrays(images, np.arange(12) % 3, "iid", clients=2, augment="flip")
    jobs = make_simulation(fed, [model], METHODS[name](), rounds=1, local=LOCAL).jobs_of_round(1)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tensor_cores)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(look)
    try:
        executor().train_all(jobs)
    finally:
        hook.remove()
    assert seen
    assert set(seen) == {tensor_cores or executor is Loop}


@pytest.mark.parametrize("optimizer", quick([SGD(0.05, momentum=0.9), Adam(0.01), AdamW(0.01)], Adam(0.01)))
def test_lasting_optimizers_in_another_layout_end_where_the_loop_does(optimizer: SGD | Adam) -> None:
    """As after a resume: what was read from a file is contiguous, filters in a lane are not."""
    made = []
    for first, second in ((Lanes(), Lanes()), (Loop(), Loop())):
        settings = {"rounds": 2, "local": replace(LOCAL, optimizer=optimizer, persistent=True), "dtype": torch.float64}
        simulation = make_simulation(federation(), [network("batch")], METHODS["fedavg"](), **settings)
        train_round(simulation.using(first), 1)
        for k, state in simulation.states.kept.items():
            simulation.states.kept[k] = state.map(torch.Tensor.contiguous)
        train_round(simulation.using(second), 2)
        made.append(simulation)
    same(*made, tolerance=1e-7)  # Adam divides by roots of small numbers, which enlarges rounding


def test_steps_write_over_the_weights_of_their_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only running statistics are copied in a step."""
    copied: list[int] = []

    def counted(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        pairs = list(pairs)
        copied.append(sum(to is not source for to, source in pairs))
        copy_all(pairs)

    monkeypatch.setattr(step_graphs, "copy_all", counted)
    trained("fedavg", Lanes())
    stats, weights = len(list(network("batch").buffers())), len(list(network("batch").parameters()))
    assert 0 < stats < weights
    assert {count for count in copied if count < weights} == {stats}


def test_all_lanes_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches of all lanes with one pass of the augmentation, and one more for the second view of each sample."""
    passes: list[int] = []
    view = Pool.view

    def counted(self: Pool, index: torch.Tensor, key: torch.Tensor | None) -> object:
        passes.append(len(index))
        return view(self, index, key)

    executor, settings = Lanes(), {"rounds": 2, "local": LOCAL}
    simulation = make_simulation(federation(), [network("batch")], METHODS["fedclassavg"](), **settings)
    train_round(simulation.using(executor), 1)
    jobs = simulation.jobs_of_round(2)
    monkeypatch.setattr(Pool, "view", counted)
    executor.train_all(jobs)
    steps = [len(mine[0]) for mine in jobs[0].schedules]
    width = LOCAL.batch_size * len(steps)
    assert max(passes) >= width, "all clients"
    assert len(passes) <= 2 * max(steps), "one pass per step and view for all lanes, not one for each lane"
    assert len(passes) < 2 * sum(steps)


def test_views_ahead_are_those_of_their_batch_alone() -> None:
    """A method may ask for views of other rows than its batch has."""
    simulation = make_simulation(federation(), [network("batch")], METHODS["fedclassavg"](), rounds=1, local=LOCAL)
    pool, rows, key = simulation.clients.pool, torch.arange(4), torch.arange(4) + 7
    asked: set[int] = set()
    holding = pool.holding(ViewsAhead(rows, key, {1: torch.zeros(1)}, asked))
    assert holding.another_view(rows, key, 1).tolist() == [0.0]
    for index, own, number in ((rows[:2], key[:2], 1), (rows, key.clone(), 1), (rows, key, 2)):
        assert torch.equal(holding.another_view(index, own, number), pool.another_view(index, own, number))
    assert asked == {1, 2}


@pytest.mark.parametrize("name", quick(["fedavg", "fedclassavg"], "fedclassavg"))
def test_lanes_of_large_inputs_draw_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = trained(name, Loop())
    monkeypatch.setattr(lane_batches, "MAX_BYTES", 0)
    monkeypatch.setattr(lane_batches.LaneBatches, "draw", None)
    same(trained(name, Lanes()), loop)
