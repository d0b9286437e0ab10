"""Measure how fast clients of uneven sizes train on a GPU, beside the same number of clients of one size.

    python benchmarks/uneven.py [--clients 10,20,60] [--workloads simplecnn,fedetf] [--precision bf16]

Random CIFAR-sized images are split by Dirichlet(0.1) and evenly; each row has the seconds of preparation, the seconds
of a round (the best of three) and the client-steps per second of both. The last column is their ratio.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

import numpy as np
import torch

from fedhead.algorithm.task import LocalTraining
from fedhead.bench.benchmark import BATCH, CLASSES, SHAPE, WORKLOADS, plain_steps_per_s
from fedhead.core.training.optimizers import SGD
from fedhead.data.federation.federation import Federation
from fedhead.data.transforms.augment import Transform
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, Schedule
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import select
from fedhead.methods import METHODS
from fedhead.models.registry import build


def measure(name: str, clients: int, partition: str, precision: str, samples: int) -> dict[str, float]:
    """Train three rounds of one split and return what they took."""
    workload, device = WORKLOADS[name], select.device("auto")
    rng = np.random.RandomState(0)
    x = rng.randint(0, 256, (samples, *SHAPE), dtype=np.uint8)
    y = rng.randint(0, CLASSES, samples)
    data = Federation.from_arrays(
        x, y, partition=partition, clients=clients, classes=CLASSES, transform=Transform.named("none", "cifar10")
    )
    method = METHODS[workload.method]
    model = build(workload.models[0], SHAPE, CLASSES, head=method.head or "linear")
    local = LocalTraining(2, BATCH, SGD(0.01, 0.9, 1e-5))
    experiment = Experiment(method(), (model,), local, Schedule(rounds=1))
    simulation = Simulation(experiment, data, Compute(device=str(device), executor="loop", precision=precision))
    worker = select.by_name("stack", simulation, compile=True)
    jobs = simulation.jobs_of_round(1)
    worker.run(jobs)
    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        worker.run(jobs)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    steps = sum(len(schedule) for job in jobs for mine in job.schedules for schedule in mine)
    return {"compile_seconds": worker.report().compile_seconds, "round": min(seconds), "rate": steps / min(seconds)}


def main() -> None:
    """Print one row per workload and number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="10,20,60")
    parser.add_argument("--workloads", default="simplecnn,fedetf")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--samples", type=int, default=50_000)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU is visible to torch, and clients pass through slots on a GPU alone")
    eager = plain_steps_per_s(dataclasses.replace(WORKLOADS["simplecnn"]), select.device("auto"), 100, 3)
    print(f"eager loop {eager:.0f} steps/s")
    print(f"{'workload':20} {'clients':>7} {'split':15} {'prep. s':>8} {'round s':>8} {'steps/s':>8} {'of even':>8}")
    for name in asked.workloads.split(","):
        for clients in map(int, asked.clients.split(",")):
            rows = {
                split: measure(name, clients, split, asked.precision, asked.samples)
                for split in ("iid", "dirichlet(0.1)")
            }
            for split, row in rows.items():
                print(
                    f"{WORKLOADS[name].name:20} {clients:7} {split:15} {row['compile_seconds']:8.1f} "
                    f"{row['round']:8.3f} {row['rate']:8.0f} {row['rate'] / rows['iid']['rate']:8.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
