"""On a GPU: stack and lanes give the plain loop's numbers, for every method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
from mixed import pair
from plain import Plain
from simulations import make_simulation
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.data.transforms.augment import Transform
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.lanes.lanes import Lanes
from fedhead.executors.loop import Loop
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.shared_stack import SharedStack
from fedhead.executors.stack.slots import plan
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.models.precision import set_precision
from gpu import GPU

pytestmark = GPU
LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.02, momentum=0.9, weight_decay=1e-3))


def simulate(
    name: str, norm: str, executor: Executor, rounds: int = 1, local: LocalTraining = LOCAL, seed: int = 0
) -> Simulation:
    set_precision("fp32")
    models, settings = [network(norm, METHODS[name].head)], {"rounds": rounds, "local": local, "seed": seed}
    simulation = make_simulation(federation(), models, METHODS[name](), device="cuda", **settings)
    for number in range(1, rounds + 1):
        train_round(simulation.using(executor), number)
    return simulation


def close(a: Simulation, b: Simulation, tolerance: float = 1e-4) -> None:
    for mine, theirs in [(a.server, b.server), *((a.states[k], b.states[k]) for k in a.states.kept)]:
        for path, value in mine.leaves().items():
            other = theirs.leaves()[path].double()
            scale = value.double().norm().clamp_min(1.0)
            assert (value.double() - other).norm() <= tolerance * scale, path


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("executor", [lambda: Stack(graphs=Graphs(compile=False)), Lanes], ids=["stack", "lanes"])
def test_every_method(name: str, norm: str, executor: type[Executor]) -> None:
    close(simulate(name, norm, Loop()), simulate(name, norm, executor()))


@pytest.mark.parametrize("name", ["scaffold", "fedrep"])
@pytest.mark.parametrize("executor", [lambda: Stack(graphs=Graphs(compile=False)), Lanes], ids=["stack", "lanes"])
def test_different_amounts_of_work(name: str, executor: type[Executor]) -> None:
    local = dataclasses.replace(LOCAL, epochs=(1, 3, 1, 1, 5))
    close(simulate(name, "group", Loop(), 2, local), simulate(name, "group", executor(), 2, local))


@pytest.mark.parametrize("name", ["fedetf", "fedrep", "scaffold"])
def test_paused_clients(name: str) -> None:
    """Four clients of 9 steps share three slots for 12 steps, so that some are paused."""
    assert any(turn.done for turn in plan([9, 9, 9, 9], 3).turns)
    local = dataclasses.replace(LOCAL, steps=9)
    stack = Stack(graphs=Graphs(compile=False, slots=3))
    close(simulate(name, "batch", Loop(), 2, local), simulate(name, "batch", stack, 2, local))


@pytest.mark.filterwarnings("ignore")  # the compiler's own: as errors they would stop it
@pytest.mark.parametrize("name", sorted(METHODS))
def test_compiled_stacks(name: str) -> None:
    graphs = Graphs(compile=True)
    close(simulate(name, "batch", Loop()), simulate(name, "batch", Stack(graphs=graphs)))
    assert graphs.compile, "the step could not be compiled"


@pytest.mark.filterwarnings("ignore")  # the compiler's own: as errors they would stop it
@pytest.mark.parametrize("method", ["fedclassavg", "fedproto"])
@pytest.mark.parametrize(
    "executor",
    [
        lambda: Stack(graphs=Graphs(compile=False)),
        lambda: Stack(graphs=Graphs(compile=True)),
        Lanes,
        lambda: Lanes(compile=True),
    ],
    ids=["stack", "compiled stack", "lanes", "compiled lanes"],
)
def test_differing_architectures(method: str, executor: Callable[[], Executor]) -> None:
    """A stack or lanes per architecture, at the same time, over several rounds."""
    set_precision("fp32")
    made = []
    for worker in (Loop(), executor()):
        simulation = make_simulation(federation(), pair(), METHODS[method](), rounds=3, local=LOCAL, device="cuda")
        for number in (1, 2, 3):
            train_round(simulation.using(worker), number)
        made.append(simulation)
    close(*made, tolerance=3e-4)


@pytest.mark.filterwarnings("ignore")  # the compiler's own: as errors they would stop it
@pytest.mark.parametrize(
    "executor",
    [Loop, lambda: Stack(graphs=Graphs(compile=False)), lambda: Stack(graphs=Graphs(compile=True)), Lanes],
    ids=["loop", "stack", "compiled stack", "lanes"],
)
def test_batchnorm_on_partial_batches_is_plain_pytorch(executor: Callable[[], Executor]) -> None:
    """Against modules and torch.optim on the samples alone, in float64 on the CPU."""
    set_precision("fp32")
    fed = dataclasses.replace(federation(), transform=Transform.named("none", "half"))
    model = network("batch")
    local = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.02, momentum=0.9))
    simulation = make_simulation(fed, [model], METHODS["local"](), rounds=1, local=local, device="cuda")
    train_round(simulation.using(executor()), 1)
    plain = Plain(fed, lr=0.02, momentum=0.9)
    for client in (0, 1, 3, 4):
        expected = plain.train(model.double(), client, 1)[0].state_dict()
        assert "extractor.body.1.running_var" in expected
        for name, value in expected.items():
            found = simulation.states[client]["own"][name].double().cpu()
            assert (found - value).norm() <= 1e-4 * value.norm().clamp_min(1.0), (client, name)


def test_a_persistent_optimizer_survives_on_the_gpu() -> None:
    local = dataclasses.replace(LOCAL, persistent=True)
    stack = Stack(graphs=Graphs(compile=False))
    close(simulate("fedavg", "group", Loop(), 2, local), simulate("fedavg", "group", stack, 2, local), 3e-4)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.filterwarnings("ignore"))])
@pytest.mark.parametrize("name", ["fedavg", "moon", "scaffold", "fedetf"])
def test_runs_that_share_a_stack(name: str, compiled: bool) -> None:
    found: dict[int, Simulation] = {}

    def run(seed: int, executor: Executor) -> None:
        found[seed] = simulate(name, "batch", executor, 3, seed=seed)

    shared = SharedStack(Stack(graphs=Graphs(compile=compiled)))
    assert shared.run({seed: partial(run, seed) for seed in range(3)}) == {}
    for seed in range(3):
        close(simulate(name, "batch", Loop(), 3, seed=seed), found[seed])
