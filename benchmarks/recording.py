"""Cost of recording: rounds with and without the losses, alternating in one process, the median over the turns.

    python benchmarks/recording.py [--device cuda] [--executor loop]

Prints one line per model: the share of a round that summing up the training loss in its steps takes, that of the test
loss beside the accuracy, and for comparison that of the whole evaluation (the forward pass over the test set).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from unittest import mock

import numpy as np
import torch

import fedhead as fh
from fedhead.core.tree.tree import Tree
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, Schedule
from fedhead.engine.rounds.rounds import evaluate, train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import select
from fedhead.executors.client import client_round
from fedhead.metrics import predictions


def federation(shape: tuple[int, ...], samples: int, test: int, clients: int) -> fh.Federation:
    """Make random samples of ten classes, evenly distributed."""
    rng = np.random.default_rng(0)
    if len(shape) == 3:
        x = rng.integers(0, 256, (samples + test, *shape), dtype=np.uint8)
    else:
        x = rng.normal(size=(samples + test, *shape)).astype(np.float32)
    y = rng.integers(0, 10, samples + test)
    split = {"layout": "nchw"} if len(shape) == 3 else {}
    return fh.Federation.from_arrays(
        x[:samples], y[:samples], "iid", clients=clients, test=(x[samples:], y[samples:]), **split
    )


CASES = {
    "mlp, 10 clients": ("mlp", (64,), 2000, 400, 10),
    "simplecnn, 10 clients": ("simplecnn", (3, 32, 32), 1280, 256, 10),
}


def times_of(functions: list[Callable[[], object]], times: int, device: torch.device) -> list[list[float]]:
    """Return the time of each call; the functions take turns, so that all see the same machine.

    On a CPU it is this process's own time, which other processes change less than that of a clock on the wall.
    """
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    found: list[list[float]] = [[] for _ in functions]
    for _ in range(times):
        for mine, function in zip(found, functions, strict=True):
            begin = clock()
            function()
            if device.type == "cuda":
                torch.cuda.synchronize()
            mine.append(clock() - begin)
    return found


def share(more: list[float], less: list[float], whole: list[float]) -> float:
    """Return by how much one function takes longer than another in per cent of a third: the median over the turns."""
    return 100 * statistics.median((a - b) / c for a, b, c in zip(more, less, whole, strict=True))


def no_loss(so_far: Tree, losses: torch.Tensor, weight: torch.Tensor, in_place: bool) -> Tree:
    """Leave the sum of the losses as it is."""
    return so_far


def no_cross_entropy(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Take no time."""
    return torch.zeros(y.shape, dtype=torch.float64, device=y.device)


def measure(name: str, executor: str, device: torch.device, times: int) -> str:
    """Measure one model and return a line."""
    model, shape, samples, test, clients = CASES[name]
    data = federation(shape, samples, test, clients)
    local = fh.LocalTraining(epochs=1, batch_size=64, optimizer=fh.SGD(0.01))

    def simulation() -> Simulation:
        experiment = Experiment(fh.FedAvg(), (fh.build(model, shape, 10),), local, Schedule(rounds=1000))
        made = Simulation(experiment, data, Compute(device=str(device), executor="loop"))
        made.using(select.by_name(executor, made, compile=True) if device.type == "cuda" else select.own(executor))
        return made

    recorded = simulation()
    plain = simulation() if device.type == "cuda" else recorded  # graphs are captured once: each has its own executor

    def without() -> None:
        with mock.patch.object(client_round, "add_loss", no_loss):
            train_round(plain, 1)

    def with_loss() -> None:
        train_round(recorded, 1)

    def test_model() -> None:
        evaluate(recorded, recorded.experiment.method, recorded.server, recorded.states, 1)

    def test_accuracy() -> None:
        with mock.patch.object(predictions, "cross_entropy", no_cross_entropy):
            test_model()

    for function in (without, with_loss, test_model, test_accuracy):
        function()  # compile, and fill the caches
    base, losses, whole, accuracy = times_of([without, with_loss, test_model, test_accuracy], times, device)
    each = [share(losses, base, base), share(whole, accuracy, base), share(whole, [0.0] * times, base)]
    words = ("training loss", "test loss", "whole evaluation")
    shares = ", ".join(f"{word} {value:+.1f} %" for word, value in zip(words, each, strict=True))
    return f"{name}, {executor} on {device}: round {1000 * min(base):.1f} ms; {shares}"


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--executor", choices=["loop", "stack"], default=None, help="both without it")
    parser.add_argument("--times", type=int, default=31)
    given = parser.parse_args()
    for name in CASES:
        for executor in [given.executor] if given.executor else ["loop", "stack"]:
            print(measure(name, executor, torch.device(given.device), given.times), flush=True)


if __name__ == "__main__":
    main()
