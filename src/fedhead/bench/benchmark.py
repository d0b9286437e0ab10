"""Benchmark of training: client-steps per second by workload, executor and precision, in one run.

A client-step is one optimization step of one client. The plain loop (eager PyTorch, one client after another, data on
the device) is taken in the same run and is the 1x that the others are measured against: the faster of fedhead's own
loop and, where it does the same work, a textbook loop with `torch.optim`.
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
from fedhead.methods import METHODS
from fedhead.models.precision import PRECISIONS
from fedhead.models.registry import build

BATCH, SHAPE, CLASSES = 64, (3, 32, 32), 10


@dataclass(frozen=True)
class Workload:
    """Workload of a benchmark: the architectures, one per client in turn, and the method."""

    name: str
    models: tuple[str, ...]
    method: str
    feature_layer: int | None = None
    plain: bool = False  # whether a textbook loop with cross entropy does the same work

    def simulation(self, clients: int, steps: int, device: torch.device, precision: str = "fp32") -> Simulation:
        """Return a federation of random CIFAR-sized images, the same number at every client."""
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
    """The speed of one workload with one number of clients, executor and precision."""

    workload: str
    clients: int
    executor: str
    precision: str
    steps_per_s: float
    ratio: float  # to the plain loop of the same workload in the same run
    floor_share: float  # of what the memory bandwidth would allow
    peak_gib: float  # beyond the data set, on a GPU
    preparing_s: float  # compiling and capturing


def bench(
    workloads: Sequence[str],
    clients: Sequence[int],
    executors: Sequence[str],
    precisions: Sequence[str],
    device: str = "auto",
    steps: int | None = None,
    repeats: int = 3,
    on_result: Callable[[BenchmarkResult], None] = lambda result: None,
    on_begin: Callable[[str], None] = lambda what: None,
) -> list[BenchmarkResult]:
    """Measure every combination; the plain loop comes first for each workload, in fp32.

    Args:
        workloads: Names in `WORKLOADS`.
        clients: How many clients train at once, one measurement for each number.
        executors: Names of executors.
        precisions: Among fp32, tf32 and bf16.
        device: cpu, cuda or auto.
        steps: Local steps per client; None: those of `default_steps`.
        repeats: How often each is measured at most; the fastest counts.
        on_result: Called with each result as soon as it is known.
        on_begin: Called with what is measured next: a slow CPU takes minutes for some of it.

    Returns:
        All results, in the order of measuring.

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
        few = max(loop_clients(where), len(workload.models))
        on_begin(describe(workload.name, few, "loop", "fp32"))
        base = measure(workload, few, "loop", "fp32", where, steps, repeats, bandwidth)
        if workload.plain:
            base.steps_per_s = max(base.steps_per_s, plain_steps_per_s(workload, where, steps, repeats))
        enter(base, base)
        for count, executor, precision in itertools.product(clients, executors, precisions):
            on_begin(describe(workload.name, count, executor, precision))
            enter(measure(workload, count, executor, precision, where, steps, repeats, bandwidth), base)
    return results


def default_steps(where: torch.device) -> int:
    """Return how many local steps a client is measured with.

    What a round begins and ends with counts too, and should not weigh more than in a real run; a CPU is slower.
    """
    return 100 if where.type == "cuda" else 20


def loop_clients(where: torch.device) -> int:
    """Return how many clients show the loop's speed: a GPU's train one after another, a CPU's one on each thread."""
    return max(2, torch.get_num_threads()) if where.type == "cpu" else 2


def describe(workload: str, clients: int, executor: str, precision: str) -> str:
    """Return the name of a measurement."""
    return f"{workload}, {clients} clients, {executor}, {precision}"


def check_names(workloads: Sequence[str], executors: Sequence[str], precisions: Sequence[str]) -> None:
    """Refuse unknown names.

    Args:
        workloads: Names in `WORKLOADS`.
        executors: Names of executors.
        precisions: Names of precisions.

    Raises:
        BadInput: For an unknown one.
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
    """Measure one workload; the result has no ratio yet.

    The time is what the clients' part of a round takes in a run: their work is put together, and they train. On a GPU
    batches are drawn, and their tables made, before that, as in a run while the GPU trains the round before; a CPU does
    so in the round itself. The server's part is not in it.

    Args:
        workload: What is trained.
        clients: How many clients train at once.
        executor: Name of the executor, or one that has trained nothing yet.
        precision: fp32, tf32 or bf16.
        where: The device.
        steps: Local steps per client.
        repeats: How often it is measured at most; the fastest counts.
        bandwidth: Bytes that the device moves per second.
    """
    gc.collect()
    if where.type == "cuda":
        torch.cuda.empty_cache()
    simulation = workload.simulation(clients, steps, where, precision)
    held = torch.cuda.memory_allocated() if where.type == "cuda" else 0
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    worker = executor if isinstance(executor, Executor) else select.by_name(executor, simulation, compile=True)
    cohort = simulation.clients.holders
    if worker.name == "loop":
        few = loop_clients(where)
        cohort = [k for k in cohort if simulation.clients.assign[:k].count(simulation.clients.assign[k]) < few]

    def train() -> ReplySet:
        return worker.run(
            simulation.jobs(simulation.experiment.method, simulation.server, simulation.states, cohort, 1)
        )

    tables = train().whole_stacks  # the first time warms up, compiles and captures

    def train_timed() -> float:
        if where.type == "cuda":
            draw_and_wait(simulation, cohort, tables)
        return seconds(train, where)

    best = fastest(train_timed, repeats)
    peak = (torch.cuda.max_memory_reserved() - held) / 2**30 if where.type == "cuda" else 0.0
    width = 2 if precision == "bf16" else 4
    moved = [floor_bytes(task.model, SHAPE, BATCH, width) for task in simulation.clients.tasks]
    rate = len(cohort) * steps / best
    share = rate / (bandwidth / (sum(moved) / len(moved)))
    preparing = worker.report().preparing
    return BenchmarkResult(workload.name, clients, worker.name, precision, rate, 0.0, share, peak, preparing)


def draw_and_wait(simulation: Simulation, cohort: list[int], tables: bool) -> None:
    """Draw the batches of the first round, and make the tables of them, before it begins.

    Args:
        simulation: The simulation.
        cohort: The clients that take part in it.
        tables: Whether a stack takes them all at once, from tables.
    """
    simulation.clients.draw_ahead(cohort, 1, tables)
    simulation.clients.batches.wait()


def plain_steps_per_s(workload: Workload, where: torch.device, steps: int, repeats: int) -> float:
    """Textbook training loop: a module, `torch.optim`, cross entropy, data on the device."""
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

    train()  # warms up
    return steps / fastest(lambda: seconds(train, where), repeats)
