"""The measurements of `targets.py`, one function per row of its table; each yields what it has measured at once."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from targets_commands import HERE, data, run, steps_per_round
from targets_measured import Measured, bench_rates
from targets_peers import fedjax_peer, pfl_peer

SIMPLECNN = [str(HERE / "cell.yaml"), "stages=[]"]
RESNET20 = ["fedetf-iid", "method=fedetf", "partition=dirichlet(0.1)", "batch_size=64"]
MODELS = ("SimpleCNN", "ResNet-20")


# -- whole commands ---------------------------------------------------------------------------------------------------
def pfl(options: argparse.Namespace) -> Iterator[Measured]:
    """pfl-research's CIFAR-10 benchmark as one command."""
    words = [str(HERE / "pfl.yaml"), *data(options), "augment=none"]
    rounds, clients = (3, 5) if options.tiny else (1500, 50)
    words += [f"rounds={rounds}", *(["clients=10", "participation=0.5", "evaluate_every=2"] if options.tiny else [])]
    steps = clients * (2 if options.tiny else 5)
    with tempfile.TemporaryDirectory() as caches:
        for state, precision in [("empty", "bf16"), ("warm", "bf16"), ("empty", "fp32")][: 1 if options.tiny else 3]:
            found = run(words, options, precision, Path(caches) / precision)
            rate = steps * (rounds - 1) / (found.last - found.first)
            name = f"pfl: {state} caches"
            yield Measured(f"{name}, whole command", found.whole, "s", "at most 20", precision)
            yield Measured(f"{name}, first round", found.first, "s", "", precision)
            yield Measured(f"{name}, rounds", rate, "client-steps/s", "", precision)


def first_round(options: argparse.Namespace) -> Iterator[Measured]:
    """The start of a command, with empty caches of the compilers and with what that run has left in them."""
    for name, words, targets in (
        ("SimpleCNN", [*SIMPLECNN, "rounds=30"], ("at most 20", "at most 8")),
        ("ResNet-20", [*RESNET20, "rounds=20", "last_rounds=1"], ("at most 40", "at most 12")),
    ):
        if options.model not in (None, name):
            continue
        if options.tiny:
            words = [*words, "rounds=2", "local_epochs=1", "batch_size=8", "clients=3", "client_test=null"]
        with tempfile.TemporaryDirectory() as caches:
            for state, target in zip(("empty", "warm"), targets, strict=True):
                found = run([*words, *data(options)], options, "bf16", Path(caches))
                yield Measured(f"first_round: {name}, {state} caches", found.first, "s", target)
                yield Measured(f"first_round: {name}, {state} caches, whole command", found.whole, "s")
        if options.tiny:
            return


def real_run(options: argparse.Namespace) -> Iterator[Measured]:
    """A command with Dirichlet(0.1), evaluation and checkpoints against `bench` for the same model and clients.

    Steps are compiled before the first round: how long that takes is in `first_round`.
    """
    yield from _against_bench("real_run", options)


def _against_bench(row: str, options: argparse.Namespace) -> Iterator[Measured]:
    for name, words, rounds, workload, clients in (
        ("SimpleCNN", SIMPLECNN, 100, "simplecnn", 10),
        ("ResNet-20", RESNET20, 40, "fedetf", 20),
    ):
        if options.model not in (None, name):
            continue
        more = [f"rounds={rounds}", f"clients={clients}"]
        if options.tiny:
            rounds, clients = 3, 2
            more = ["rounds=3", "clients=2", "local_epochs=1", "batch_size=8", "client_test=null"]
        words = [*words, *more, *data(options)]
        steps = steps_per_round(words, options)
        found = run(words, options, "bf16", compile="wait")
        rate = steps * (rounds - 1) / (found.last - found.first)
        (promised,) = bench_rates(workload, clients, ["stack"], ["bf16"], options)
        yield Measured(f"{row}: {name}", rate, "client-steps/s")
        yield Measured(f"{row}: {name}, bench", promised.steps_per_s, "client-steps/s")
        yield Measured(f"{row}: {name}, share of bench", 100 * rate / promised.steps_per_s, "%", "at least 80")
        if found.busy is not None:
            yield Measured(f"{row}: {name}, GPU busy between first and last round", found.busy, "%", "at least 90")
        if options.tiny:
            return


# -- in this process --------------------------------------------------------------------------------------------------
def simplecnn40(options: argparse.Namespace) -> Iterator[Measured]:
    """FedAvg of SimpleCNN with 40 clients."""
    (found,) = bench_rates("simplecnn", 4 if options.tiny else 40, ["stack"], ["bf16"], options)
    yield Measured("simplecnn40: FedAvg, 40 clients", found.steps_per_s, "client-steps/s", "at least 100000")
    yield Measured("simplecnn40: against the eager loop", found.ratio, "x")


def resnet20(options: argparse.Namespace) -> Iterator[Measured]:
    """FedETF of ResNet-20 with 20 clients."""
    (found,) = bench_rates("fedetf", 2 if options.tiny else 20, ["stack"], ["bf16"], options)
    yield Measured("resnet20: FedETF, 20 clients", found.steps_per_s, "client-steps/s", "at least 6000")
    yield Measured("resnet20: against the eager loop", found.ratio, "x")
    yield Measured("resnet20: share of the memory floor", 100 * found.floor_share, "%", "at least 40")


def stages(options: argparse.Namespace) -> Iterator[Measured]:
    """The stages of a SimpleCNN run on 50,000 images, less one pass of the features' model over them."""
    import targets_data
    import torch
    from simulations import simulate

    import fedhead as fh
    from fedhead.algorithm.task import LocalTraining
    from fedhead.engine.clients.server import evaluate_global_model
    from fedhead.engine.rounds.rounds import run_stage
    from fedhead.stages.recalibrate import features

    x, y, x_test, y_test = targets_data.few_images() if options.tiny else targets_data.images()
    clients = 4 if options.tiny else 10
    fed = fh.Federation.from_arrays(x, y, "dirichlet(0.1)", clients=clients, test=(x_test, y_test))
    settings: dict[str, Any] = {"rounds": 1, "local": LocalTraining(), "device": options.device, "precision": "bf16"}
    result = simulate(fed, fh.build("simplecnn", (3, 32, 32), 10), fh.FedAvg(), **settings)
    here = result.transport.clients

    def timed(work: Callable[[], object]) -> float:
        wait = torch.cuda.synchronize if here.device.type == "cuda" else (lambda: None)
        wait()
        begin = time.perf_counter()
        work()
        wait()
        return time.perf_counter() - begin

    def forward() -> None:
        features(here.task.model, result.server["model"], here.pool)

    def tested() -> None:
        evaluate_global_model(here.method, result.server, here.task, here.test, here.bf16)

    for work in (forward, tested):
        work()
    alone = timed(forward) + timed(tested)
    yield Measured("stages: forward pass of all samples, and the test", alone, "s")
    few = {"samples": 20, "epochs": 1} if options.tiny else {}
    for stage in (fh.CCVR(**few), fh.Recalibrate(epochs=1 if options.tiny else 50)):
        for time_of in ("first", "second"):
            taken = timed(functools.partial(run_stage, result.transport, stage))
            yield Measured(f"stages: {stage.name}, {time_of} in the process", taken - alone, "s", "at most 1")


def architectures(options: argparse.Namespace) -> Iterator[Measured]:
    """FedClassAvg of four architectures with 20 clients, against the eager loop; what compiles quickly comes first."""
    import torch

    from fedhead.bench import benchmark
    from fedhead.executors.client.base import Executor
    from fedhead.executors.lanes.lanes import Lanes
    from fedhead.executors.stack.graphs import Graphs
    from fedhead.executors.stack.stack import Stack

    where, workload = torch.device(options.device), benchmark.WORKLOADS["mixed"]
    clients, *size = (4, 1, 1, 1.0) if options.tiny else (20, 20, 3, 1.0)
    eager = benchmark.measure(workload, 4, "loop", "fp32", where, *size).steps_per_s
    yield Measured("architectures: eager loop", eager, "client-steps/s", "", "fp32")
    # a stack of such models takes minutes to compile, so that --executor auto takes lanes as well
    for compile, precision in itertools.product([False, True], ["bf16", "fp32"]):
        worker: Executor = Lanes(compile=compile) if where.type == "cuda" else Stack(graphs=Graphs(compile=compile))
        found = benchmark.measure(workload, clients, worker, precision, where, *size)
        name = f"architectures: {worker.name}{', compiled' if compile else ''}"
        target = "at least 20" if precision == "bf16" else "at least 8"
        yield Measured(name, found.steps_per_s, "client-steps/s", "", precision)
        yield Measured(f"{name}, against the eager loop", found.steps_per_s / eager, "x", target, precision)
        yield Measured(f"{name}, preparation", found.preparing_s, "s", "", precision)
        if options.tiny:
            return


def scaffold(options: argparse.Namespace) -> Iterator[Measured]:
    """A thousand SCAFFOLD clients, of which 50 take part in a round, against `bench` with 50 clients."""
    import torch

    from fedhead.bench import benchmark
    from fedhead.engine.experiment.compute import Compute
    from fedhead.engine.experiment.experiment import Schedule
    from fedhead.engine.rounds.rounds import train_round
    from fedhead.engine.rounds.simulation import Simulation
    from fedhead.executors import select

    clients, steps, rounds = (20, 2, 3) if options.tiny else (1000, 100, 12)
    cohort = clients // 20
    device = torch.device(options.device)
    workload = benchmark.Workload("SimpleCNN, SCAFFOLD", ("simplecnn",), "scaffold", plain=True)
    promised = benchmark.measure(workload, cohort, "stack", "bf16", device, steps, 3, 1.0)
    yield Measured(f"scaffold: bench, {cohort} clients", promised.steps_per_s, "client-steps/s")
    yield Measured(f"scaffold: memory of bench, {cohort} clients", promised.peak_gib, "GiB")
    whole = workload.simulation(clients, 1, device, "bf16")
    experiment = dataclasses.replace(
        whole.experiment,
        local=dataclasses.replace(whole.task.local, steps=steps),
        schedule=Schedule(rounds, participation=0.05),
    )
    compute = Compute(device=str(device), executor="loop", precision="bf16")
    simulation = Simulation(experiment, whole.clients.federation, compute)
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() if gpu else 0
    simulation.using(select.by_name("stack", simulation, compile=True))
    train_round(simulation, 1)  # warms up, compiles and captures
    begin = time.perf_counter()
    for number in range(2, rounds + 1):
        train_round(simulation, number)
    if gpu:
        torch.cuda.synchronize()
    rate = cohort * steps * (rounds - 1) / (time.perf_counter() - begin)
    yield Measured("scaffold: 1,000 clients, participation 0.05", rate, "client-steps/s")
    yield Measured("scaffold: share of bench", 100 * rate / promised.steps_per_s, "%", "at least 70")
    if gpu:
        peak = (torch.cuda.max_memory_reserved() - held) / 2**30
        yield Measured("scaffold: memory beyond the data set", peak, "GiB", f"at most {1.1 * promised.peak_gib:.2f}")


def eager(options: argparse.Namespace) -> Iterator[Measured]:
    """The eager loop of SimpleCNN, which says how fast the host is."""
    import torch

    from fedhead.bench.benchmark import WORKLOADS, plain_steps_per_s

    where = torch.device(options.device)
    steps, repeats = (2, 1) if options.tiny else (100, 3)
    rate = plain_steps_per_s(WORKLOADS["simplecnn"], where, steps, repeats)
    yield Measured("eager loop, SimpleCNN", rate, "client-steps/s", "", "fp32")


# Each row with the seconds that it may take.
ROWS: dict[str, tuple[Callable[[argparse.Namespace], Iterator[Measured]], float]] = {
    "simplecnn40": (simplecnn40, 120),
    "resnet20": (resnet20, 150),
    "stages": (stages, 90),
    "pfl": (pfl, 240),
    "pfl_peer": (pfl_peer, 120),
    "fedjax_peer": (fedjax_peer, 240),
    "scaffold": (scaffold, 150),
    "real_run": (real_run, 300),
    "first_round": (first_round, 300),
    "architectures": (architectures, 560),
}
