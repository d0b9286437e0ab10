"""On a GPU: samples of several named inputs train alike in a loop, in stacks, compiled stacks and lanes."""

from __future__ import annotations

import pytest
from named import named_federation, named_model
from simulations import make_simulation

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.engine.rounds.rounds import evaluate, train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.lanes.lanes import Lanes
from fedhead.executors.loop import Loop
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.models.precision import set_precision
from gpu import GPU

pytestmark = GPU
LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.02, momentum=0.9))


def simulate(name: str, executor: Executor) -> tuple[Simulation, dict[str, object]]:
    set_precision("fp32")
    made = make_simulation(named_federation(), [named_model()], METHODS[name](), rounds=2, local=LOCAL, device="cuda")
    for number in (1, 2):
        train_round(made.using(executor), number)
    return made, evaluate(made, made.context(2), {})


@pytest.mark.parametrize("name", ["fedavg", "moon", "fedproto"])
@pytest.mark.parametrize("executor", [lambda: Stack(graphs=Graphs(compile=False)), Lanes], ids=["stack", "lanes"])
def test_every_executor_gives_the_loops_numbers(name: str, executor: type[Executor]) -> None:
    (loop, _), (other, row) = simulate(name, Loop()), simulate(name, executor())
    for path, value in loop.server.leaves().items():
        found = other.server.leaves()[path].double()
        assert (value.double() - found).norm() <= 1e-4 * value.double().norm().clamp_min(1.0), path
    assert row["personal"] is not None


@pytest.mark.filterwarnings("ignore")  # the compiler's own: as errors they would stop it
def test_compiled_stacks() -> None:
    graphs = Graphs(compile=True)
    (loop, _), (stack, _) = simulate("fedavg", Loop()), simulate("fedavg", Stack(graphs=graphs))
    assert graphs.compile, "the step could not be compiled"
    for path, value in loop.server.leaves().items():
        found = stack.server.leaves()[path].double()
        assert (value.double() - found).norm() <= 1e-4 * value.double().norm().clamp_min(1.0), path
