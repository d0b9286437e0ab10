"""A FedAvg round of fedhead on the CPU beside the same round of other libraries, in one run.

    pip install 'flwr[simulation]==1.41.0' 'pfl==0.6.0' torch==2.13.0     # what is not there is left out, and said
    python benchmarks/peers.py [--models simplecnn,resnet20] [--sides fedhead,...] [--threads 2] [--json FILE]

Ten clients hold the same random 32x32 images in memory and train the same module for one epoch (batch 64, SGD with
momentum); the server averages. Every side runs in processes of its own, one side after another, and that several times
over; the first round of each time only warms up, and of the others the best and the median are given. No side starts,
samples, tests or writes anything while it is timed. The peers get float images, ready for the model; fedhead takes
bytes and normalizes each batch, and its process calls `fh.tune_malloc()`, as the command line does. Where a library can
work on several clients at once, both ways of sharing the threads are tried.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import fedhead as fh
from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, Schedule
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import select

CLIENTS, BATCH, SHAPE = 10, 64, (3, 32, 32)
STEPS = {"simplecnn": 40, "resnet20": 8}  # of each client in a round
LR, MOMENTUM, DECAY = 0.01, 0.9, 1e-5
RESULT = "seconds a round: "


# -- what all sides share ---------------------------------------------------------------------------------------------
def images(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Random images of ten classes, as many for each client."""
    rng = np.random.RandomState(0)
    x = rng.randint(0, 256, (CLIENTS * STEPS[name] * BATCH, *SHAPE)).astype(np.uint8)
    return x, rng.randint(0, 10, len(x))


@functools.cache
def held(name: str) -> list[tuple[Tensor, Tensor]]:
    """Return each client's samples for a peer: images as the model wants them, and labels."""
    x, y = images(name)
    ready = torch.from_numpy(x).float().div_(127.5).sub_(1)
    return list(zip(ready.chunk(CLIENTS), torch.from_numpy(y).chunk(CLIENTS), strict=True))


def network(name: str) -> nn.Module:
    """The module that all sides train; fedhead leaves BatchNorm's counters out, plain PyTorch wants them."""
    model = fh.build(name, SHAPE, 10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = torch.tensor(0)
    return model


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a client's round."""
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)


def epoch(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """One epoch over tensors in memory, as one would write it by hand."""
    model.train()
    steps = optimizer(model)
    for rows in torch.randperm(len(y)).split(BATCH):
        steps.zero_grad()
        nn.functional.cross_entropy(model(x[rows]).logits, y[rows]).backward()
        steps.step()


def average(into: nn.Module, models: list[nn.Module]) -> None:
    """Write the mean of equally large clients' models into the server's."""
    states = [model.state_dict() for model in models]
    into.load_state_dict({k: torch.stack([s[k].float() for s in states]).mean(0) for k in states[0]})


def timed(rounds: int, work: Callable[[int], object]) -> list[float]:
    """The seconds of each round."""
    ends = [time.perf_counter()]
    for number in range(1, rounds + 1):
        work(number)
        ends.append(time.perf_counter())
    return list(np.diff(ends))


# -- the sides: (model, rounds, workers, threads) -> seconds a round ---------------------------------------------------
def fedhead(name: str, rounds: int, workers: int, threads: int) -> list[float]:
    """This library, as `fedhead run` trains, with the executor that `auto` takes."""
    fh.tune_malloc()
    fed = fh.Federation.from_arrays(*images(name), partition="iid", clients=CLIENTS, classes=10)
    local = LocalTraining(1, BATCH, SGD(LR, MOMENTUM, DECAY))
    experiment = Experiment(fh.FedAvg(), (fh.build(name, SHAPE, 10),), local, Schedule(rounds))
    simulation = Simulation(experiment, fed, Compute(device="cpu", executor="loop"))
    executor = select.executor("auto", simulation)
    return timed(rounds, lambda number: train_round(simulation.using(executor), number))


def by_hand(name: str, rounds: int, workers: int, threads: int) -> list[float]:
    """No library: one client after another, batches cut from tensors in memory."""
    server = network(name)

    def work(number: int) -> None:
        trained = [copy.deepcopy(server) for _ in range(CLIENTS)]
        for model, (x, y) in zip(trained, held(name), strict=True):
            epoch(model, x, y)
        average(server, trained)

    return timed(rounds, work)


def loaders(name: str, rounds: int, workers: int, threads: int) -> list[float]:
    """The loop of PFLlib and FL-bench, imitated: a model and a `DataLoader` a client, one client after another."""
    server = network(name)
    clients = [copy.deepcopy(server) for _ in range(CLIENTS)]
    samples = [list(zip(x, y, strict=True)) for x, y in held(name)]

    def work(number: int) -> None:
        for model, mine in zip(clients, samples, strict=True):
            model.load_state_dict(server.state_dict())
            model.train()
            steps = optimizer(model)
            for x, y in DataLoader(mine, BATCH, shuffle=True, drop_last=True):  # type: ignore[arg-type]  # a list will do
                steps.zero_grad()
                nn.functional.cross_entropy(model(x).logits, y).backward()
                steps.step()
        average(server, clients)

    return timed(rounds, work)


class Learner(nn.Module):
    """A module with the two methods that pfl-research asks for."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch."""
        self.train()
        return nn.functional.cross_entropy(self.net(x).logits, y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """The metrics of a batch."""
        from pfl.metrics import Weighted

        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


def pfl(name: str, rounds: int, workers: int, threads: int) -> list[float]:
    """pfl-research's FederatedAveraging on its simulated backend; several workers under torchrun."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    ends = [time.perf_counter()]

    class Clock(TrainingProcessCallback):
        """Notes when a round ends."""

        def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Metrics]:
            ends.append(time.perf_counter())
            return False, Metrics()

    users = {str(k): PyTorchTensorDataset(tensors=pair, user_id=str(k)) for k, pair in enumerate(held(name))}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    learner = Learner(network(name))
    model = PyTorchModel(
        learner,
        functools.partial(torch.optim.SGD, momentum=MOMENTUM, weight_decay=DECAY),
        torch.optim.SGD(learner.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, evaluation_frequency=rounds + 1, train_cohort_size=CLIENTS, val_cohort_size=0),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_learning_rate=LR, local_num_epochs=1, local_batch_size=BATCH),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # left open, it may abort a worker at its end
    return list(np.diff(ends))


@functools.cache
def worker_model(name: str) -> nn.Module:
    """The model of one of Flower's workers, whose weights are replaced for each client."""
    return network(name)


def flower_train(message: Any, context: Any) -> Any:
    """Answer a message of the server as Flower's ClientApp does."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    model = worker_model(str(message.content["config"]["model"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = held(str(message.content["config"]["model"]))[int(context.node_config["partition-id"])]
    epoch(model, x, y)
    sent = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(sent), reply_to=message)  # type: ignore[arg-type]  # records of two kinds


def flower(name: str, rounds: int, workers: int, threads: int) -> list[float]:
    """Flower's simulation runtime on Ray with its FedAvg; `workers` clients at a time."""
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    ends: list[float] = []
    answered: list[int] = []  # rounds in which clients sent what they had trained
    client, server = ClientApp(), ServerApp()
    client.train()(flower_train)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        result = strategy.start(
            grid,
            ArrayRecord(network(name).state_dict()),
            rounds,
            train_config=ConfigRecord({"model": name}),
            evaluate_fn=lambda number, arrays: ends.append(time.perf_counter()),
        )
        answered.extend(result.train_metrics_clientapp)

    resources = {"num_cpus": threads // workers, "num_gpus": 0.0}
    backend = {"init_args": {"num_cpus": threads}, "client_resources": resources}
    run_simulation(server, client, CLIENTS, backend_config=backend)  # type: ignore[arg-type]  # their type is narrower
    assert len(ends) == rounds + 1 == len(answered) + 1, "Flower's rounds failed: see above"
    return list(np.diff(ends))


class Side(NamedTuple):
    """One row of the table."""

    words: str
    run: Callable[[str, int, int, int], list[float]]
    several: bool = False  # whether its workers share the threads, instead of one using all
    packages: tuple[str, ...] = ()


SIDES = {
    "fedhead": Side("fedhead, executor auto", fedhead),
    "by-hand": Side("a loop by hand, tensors in memory", by_hand),
    "loaders": Side("a loop as in PFLlib and FL-bench, with DataLoaders (imitated)", loaders),
    "pfl": Side("pfl-research, one process", pfl, packages=("pfl",)),
    "pfl-torchrun": Side("pfl-research, a process a thread under torchrun", pfl, True, ("pfl",)),
    "flower": Side("Flower simulation, one client at a time", flower, packages=("flwr", "ray")),
    "flower-parallel": Side("Flower simulation, a client a thread", flower, True, ("flwr", "ray")),
}


# -- taking turns -----------------------------------------------------------------------------------------------------
def turn(key: str, name: str, rounds: int, threads: int) -> list[float]:
    """The seconds of some rounds of one side, in processes of its own; the first, which warms up, is left out."""
    side = SIDES[key]
    workers = threads if side.several else 1
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", str(workers)] if key == "pfl-torchrun" else []
    own = ["--side", key, "--models", name, "--rounds", str(rounds + 1), "--threads", str(threads)]
    done = subprocess.run(
        [sys.executable, *torchrun, str(Path(__file__).resolve()), *own],
        env={**os.environ, "OMP_NUM_THREADS": str(threads // workers), "FLWR_TELEMETRY_ENABLED": "0"},
        capture_output=True,
        text=True,
    )
    found = [line.removeprefix(RESULT) for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if done.returncode or not found:
        print(f"{key} failed and gets no figure for this turn:\n{done.stderr[-4000:]}", file=sys.stderr)
        return []
    return [float(s) for s in json.loads(found[-1])][1:]


def measure(name: str, keys: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each side: its steps a second at best and in the median, and by what factor fedhead is faster."""
    taken: dict[str, list[float]] = {key: [] for key in keys}
    for _ in range(options.turns):
        for key in keys:
            taken[key] += turn(key, name, options.rounds, options.threads)
            print(f"{name} {key}: {', '.join(f'{s:.2f}' for s in taken[key])} s a round", file=sys.stderr, flush=True)
    steps = CLIENTS * STEPS[name]
    best = {key: steps / min(seconds) for key, seconds in taken.items() if seconds}
    median = {key: steps / float(np.median(taken[key])) for key in best}
    nothing = float("nan")
    return [
        {
            "model": name,
            "side": key,
            "steps_per_s": best[key],
            "ratio": best.get("fedhead", nothing) / best[key],
            "median_steps_per_s": median[key],
            "median_ratio": median.get("fedhead", nothing) / median[key],
            "seconds": taken[key],
        }
        for key in best
    ]


def missing(key: str) -> str | None:
    """Why a side can't take part, if it can't."""
    absent = [name for name in SIDES[key].packages if importlib.util.find_spec(name) is None]
    return f"{key} is left out: {', '.join(absent)} not installed (see the head of this file)" if absent else None


def main() -> None:
    """Measure all sides in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(STEPS))
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="timed rounds a turn")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", help=argparse.SUPPRESS)  # one side of the above, in a process of its own
    options = parser.parse_args()
    if options.side:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        workers = options.threads if SIDES[options.side].several else 1
        seconds = SIDES[options.side].run(options.models, options.rounds, workers, options.threads)
        if os.environ.get("RANK", "0") == "0":
            print(RESULT + json.dumps(seconds), flush=True)
        return
    wanted = options.sides.split(",")
    unknown = [key for key in wanted if key not in SIDES]
    if unknown:
        parser.error(f"unknown side {unknown[0]!r}: select from {', '.join(SIDES)}")
    for reason in filter(None, map(missing, wanted)):
        print(reason, file=sys.stderr)
    keys = [key for key in wanted if missing(key) is None]
    rows = [row for name in options.models.split(",") for row in measure(name, keys, options)]
    packages = ["torch", *sorted({p for key in keys for p in SIDES[key].packages})]
    versions = {name: importlib.metadata.version(name) for name in packages}
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print("| model | side | steps/s, best | fedhead is faster by | steps/s, median | by |\n|---|---|---|---|---|---|")
    for row in rows:
        best, median = (f"{row[k + 'steps_per_s']:.1f} | {row[k + 'ratio']:.2f}" for k in ("", "median_"))
        print(f"| {row['model']} | {SIDES[row['side']].words} | {best} | {median} |")
    if options.json:
        options.json.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    import peers  # by its name, under which Flower's workers import what they are sent

    peers.main()
