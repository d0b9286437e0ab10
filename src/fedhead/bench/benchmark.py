"""Benchmark of training: client steps per second by workload, executor and precision.

A client step is one optimization step of one client. The baseline (1x) is the plain loop, measured in the same run:
eager PyTorch, one client after another, data on the device. It is the faster of fedhead's loop and, for workloads with
plain cross entropy, a textbook loop with `torch.optim`.
"""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedhead.algorithm.task import LocalTraining
from fedhead.bench.memory_floor import copy_bandwidth, floor_bytes
from fedhead.bench.timing import fastest, seconds
from fedhead.core.system.errors import require_known
from fedhead.core.training.optimizers import SGD
from fedhead.data.federation.federation import Federation
from fedhead.data.transforms.augment import Transform
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, Schedule
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.executors.client.reply_set import ReplySet
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.models.precision import PRECISIONS
from fedhead.models.registry import build

BATCH, SHAPE, CLASSES = 64, (3, 32, 32), 10


@dataclass(frozen=True)
class Workload:
    """Workload of a benchmark: a method and architectures, which are assigned to clients in turn."""

    name: str
    models: tuple[str, ...]
    method: str
    feature_layer: int | None = None
    plain: bool = False  # whether a textbook loop with cross entropy is equivalent

    def simulation(self, clients: int, steps: int, device: torch.device, precision: str = "fp32") -> Simulation:
        """Return a simulation with random CIFAR-sized images, equally many per client."""
        rng = np.random.RandomState(0)
        x = rng.randint(0, 256, (clients * steps * BATCH, *SHAPE), dtype=np.uint8)
        y = rng.randint(0, CLASSES, len(x))
        transform = Transform.named("none", "cifar10")
        data = Federation.from_arrays(x, y, partition="iid", clients=clients, classes=CLASSES, transform=transform)
        method = METHODS[self.method]
        models = [
            build(name, SHAPE, CLASSES, head=method.head or "linear", feature_layer=self.feature_layer)
            for name in self.models
        ]
        local = LocalTraining(1, BATCH, SGD(0.01, 0.9, 1e-5))
        compute = Compute(device=str(device), executor="loop", precision=precision)
        return Simulation(Experiment(method(), tuple(models), local, Schedule(rounds=1)), data, compute)


WORKLOADS = {
    "simplecnn": Workload("SimpleCNN, FedAvg", ("simplecnn",), "fedavg", plain=True),
    "moon": Workload("SimpleCNN, MOON", ("simplecnn",), "moon"),
    "resnet20": Workload("ResNet-20, FedAvg", ("resnet20",), "fedavg", plain=True),
    "fedetf": Workload("ResNet-20, FedETF", ("resnet20",), "fedetf", plain=True),
    "mixed": Workload(
        "four architectures, FedClassAvg", ("resnet18", "shufflenetv2", "googlenet", "alexnet"), "fedclassavg", 512
    ),
}


@dataclass
class BenchmarkResult:
    """Speed of one workload with a number of clients, an executor and a precision."""

    workload: str
    clients: int
    executor: str
    precision: str
    steps_per_s: float
    ratio: float  # relative to the plain loop of the same workload
    floor_share: float  # speed relative to the maximum at full memory bandwidth
    peak_gib: float  # peak GPU memory without the data set
    compile_s: float  # seconds of compiling and capturing


def bench(
    workloads: Sequence[str],
    clients: Sequence[int],
    executors: Sequence[str],
    precisions: Sequence[str],
    device: str = "auto",
    steps: int | None = None,
    repeats: int = 3,
    on_result: Callable[[BenchmarkResult], None] = lambda result: None,
    on_begin: Callable[[str], None] = lambda name: None,
) -> list[BenchmarkResult]:
    """Measure all combinations; each workload starts with the plain loop in fp32.

    Args:
        workloads: Names in `WORKLOADS`.
        clients: Numbers of clients to measure.
        executors: Names of executors.
        precisions: Any of fp32, tf32 and bf16.
        device: cpu, cuda or auto.
        steps: Local steps per client; None: `default_steps`.
        repeats: Maximum number of repetitions; the fastest counts.
        on_result: Callback with each result.
        on_begin: Callback with the name of the next measurement, which may take minutes on a slow CPU.

    Returns:
        Results in the order of measurement.

    Raises:
        BadInput: For an unknown name.
    """
    check_names(workloads, executors, precisions)
    where = select.device(device)
    steps = steps or default_steps(where)
    bandwidth = copy_bandwidth(where)
    results: list[BenchmarkResult] = []

    def enter(result: BenchmarkResult, base: BenchmarkResult) -> None:
        result.ratio = result.steps_per_s / base.steps_per_s
        results.append(result)
        on_result(result)

    for name in workloads:
        workload = WORKLOADS[name]
        baseline_clients = max(loop_clients(where), len(workload.models))
        on_begin(describe(workload.name, baseline_clients, "loop", "fp32"))
        base = measure(workload, baseline_clients, "loop", "fp32", where, steps, repeats, bandwidth)
        if workload.plain:
            base.steps_per_s = max(base.steps_per_s, plain_steps_per_s(workload, where, steps, repeats))
        enter(base, base)
        for count, executor, precision in itertools.product(clients, executors, precisions):
            on_begin(describe(workload.name, count, executor, precision))
            enter(measure(workload, count, executor, precision, where, steps, repeats, bandwidth), base)
    return results


def default_steps(where: torch.device) -> int:
    """Return the number of local steps per client.

    The start and end of a round are measured too. With enough steps, their share of the time is that of a real run. A
    CPU takes fewer steps, because it is slower.
    """
    return 100 if where.type == "cuda" else 20


def loop_clients(where: torch.device) -> int:
    """Return the number of clients to measure the loop with: one per CPU thread; on a GPU they train serially."""
    return max(2, torch.get_num_threads()) if where.type == "cpu" else 2


def describe(workload: str, clients: int, executor: str, precision: str) -> str:
    """Return the name of a measurement."""
    return f"{workload}, {clients} clients, {executor}, {precision}"


def check_names(workloads: Sequence[str], executors: Sequence[str], precisions: Sequence[str]) -> None:
    """Check that all names are known.

    Args:
        workloads: Names in `WORKLOADS`.
        executors: Names of executors.
        precisions: Names of precisions.

    Raises:
        BadInput: For an unknown name.
    """
    for name in workloads:
        require_known("workload", name, WORKLOADS)
    for name in precisions:
        require_known("precision", name, PRECISIONS)
    for name in executors:
        select.EXECUTORS.find(name)


def measure(
    workload: Workload,
    clients: int,
    executor: str | Executor,
    precision: str,
    where: torch.device,
    steps: int,
    repeats: int,
    bandwidth: float,
) -> BenchmarkResult:
    """Measure one workload; the ratio of the result is not set.

    Measures the clients' part of a round: creation of the jobs and training. On a GPU the batches and their index
    tables are precomputed and not measured, as in a run, where this overlaps with the previous round. On a CPU they are
    measured. The server's part is not measured.

    Args:
        workload: Workload to train.
        clients: Number of clients that train at once.
        executor: Name of an executor, or a new executor.
        precision: fp32, tf32 or bf16.
        where: Device of the training.
        steps: Local steps per client.
        repeats: Maximum number of repetitions; the fastest counts.
        bandwidth: Memory bandwidth of the device in bytes per second.
    """
    gc.collect()
    if where.type == "cuda":
        torch.cuda.empty_cache()
    simulation = workload.simulation(clients, steps, where, precision)
    data_bytes = torch.cuda.memory_allocated() if where.type == "cuda" else 0
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    if executor == "stack":
        executor = Stack(graphs=Graphs(compile=True))  # also where compiling takes longer than it saves
    worker = executor if isinstance(executor, Executor) else select.by_name(executor, simulation)
    cohort = simulation.clients.holders
    if worker.name == "loop":
        most = loop_clients(where)  # per architecture
        cohort = [k for k in cohort if simulation.clients.assign[:k].count(simulation.clients.assign[k]) < most]

    def train() -> ReplySet:
        return worker.run(
            simulation.jobs(simulation.experiment.method, simulation.server, simulation.states, cohort, 1)
        )

    tables = train().whole_stacks  # the first call warms up, compiles and captures

    def train_timed() -> float:
        if where.type == "cuda":
            draw_and_wait(simulation, cohort, tables)
        return seconds(train, where)

    best = fastest(train_timed, repeats)
    peak = (torch.cuda.max_memory_reserved() - data_bytes) / 2**30 if where.type == "cuda" else 0.0
    width = 2 if precision == "bf16" else 4
    moved = [floor_bytes(task.model, SHAPE, BATCH, width) for task in simulation.clients.tasks]
    rate = len(cohort) * steps / best
    share = rate / (bandwidth / (sum(moved) / len(moved)))
    compile_seconds = worker.report().compile_seconds
    return BenchmarkResult(workload.name, clients, worker.name, precision, rate, 0.0, share, peak, compile_seconds)


def draw_and_wait(simulation: Simulation, cohort: list[int], tables: bool) -> None:
    """Precompute the batches of the first round, and their index tables.

    Args:
        simulation: Simulation to train.
        cohort: Clients of the round.
        tables: Whether to build index tables, for a stack of all clients.
    """
    simulation.clients.draw_ahead(cohort, 1, tables)
    simulation.clients.batches.wait()


def plain_steps_per_s(workload: Workload, where: torch.device, steps: int, repeats: int) -> float:
    """Measure a textbook training loop: a module, `torch.optim`, cross entropy, data on the device."""
    simulation = workload.simulation(2, steps, where)
    model, pool = copy.deepcopy(simulation.task.model).train(), simulation.clients.pool
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
    rows = torch.arange(steps * BATCH, device=where).reshape(steps, BATCH)

    def train() -> None:
        for part in rows:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pool.view(part, None)).logits, pool.y[part])
            torch.autograd.backward(loss)
            optimizer.step()

    train()  # warm-up
    return steps / fastest(lambda: seconds(train, where), repeats)
