"""fedhead's round on the CPU against a plain PyTorch loop that takes the same local steps, in one run.

    python benchmarks/speed.py [--models mlp,simplecnn,resnet20] [--repeats 5] [--json FILE]

Both sides train 10 clients for the same steps on the same batches (random 32x32 images; 8x8 for the MLP), batch 64.
The two run in separate processes and take turns, and the best of several times counts, so that other load on the
machine hits both. fedhead's process calls `fh.tune_malloc()` first, as the command line does: the C library then keeps
the memory that a step has freed. The plain loop's process has the C library's defaults.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedhead as fh
from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, Schedule
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.executors.client.job import Job

CLIENTS, BATCH = 10, 64
SAMPLES = {"mlp": 1280, "simplecnn": 512, "resnet20": 128}  # a client
SHAPES = {"mlp": (1, 8, 8), "simplecnn": (3, 32, 32), "resnet20": (3, 32, 32)}
LR, MOMENTUM, DECAY = 0.01, 0.9, 1e-5


def federation(name: str) -> fh.Federation:
    """Random images of ten classes, the same number at every client."""
    rng = np.random.RandomState(0)
    x = rng.randint(0, 256, (CLIENTS * SAMPLES[name], *SHAPES[name])).astype(np.uint8)
    return fh.Federation.from_arrays(x, rng.randint(0, 10, len(x)), partition="iid", clients=CLIENTS, classes=10)


def plain_round(model: nn.Module, fed: fh.Federation, job: Job) -> None:
    """Train as a reader of PyTorch's tutorials would: a deep copy a client, `torch.optim`, a loop."""
    for place, _ in enumerate(job.clients):
        local = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(local.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
        for positions in job.schedules[place][0].positions:
            rows = torch.from_numpy(job.indices[place][positions])
            x = fed.train.x[rows].float() / 255
            optimizer.zero_grad()
            nn.functional.cross_entropy(local(x).logits, fed.train.y[rows]).backward()
            optimizer.step()


def seconds(work: Callable[[], object]) -> float:
    """The time of one go; on one thread the processor's own, which other load on the machine does not inflate."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    work()
    return clock() - begin


def side(who: str, name: str, precision: str, threads: int, pipe: Connection) -> None:
    """One of the two sides: told to go, it answers with its seconds and what ran."""
    torch.set_num_threads(threads)
    if who == "fedhead":
        fh.tune_malloc()
    fed = federation(name)
    model = fh.build(name, SHAPES[name], 10)
    local = LocalTraining(1, BATCH, SGD(LR, MOMENTUM, DECAY))
    experiment = Experiment(fh.FedAvg(), (model,), local, Schedule(rounds=1))
    simulation = Simulation(experiment, fed, Compute(device="cpu", executor="loop", precision=precision))
    (job,) = simulation.jobs_of_round(1)
    worker: Executor | None = select.executor("auto", simulation) if who == "fedhead" else None
    pipe.send("ready")
    while pipe.recv():
        taken = seconds(lambda: plain_round(model, fed, job) if worker is None else worker.run([job]))
        pipe.send((taken, sum(len(s[0]) for s in job.schedules), "plain" if worker is None else worker.name))


def measure(name: str, precision: str, repeats: int, threads: int) -> dict[str, object]:
    """The ratio for one architecture: the plain loop's best time over fedhead's."""
    processes, pipes = [], []
    for who in ("plain", "fedhead"):
        ours, theirs = Pipe()
        process = get_context("spawn").Process(target=side, args=(who, name, precision, threads, theirs))
        process.start()
        ours.recv()  # one after another: an executor that is timed while the other side starts is timed wrongly
        processes.append(process)
        pipes.append(ours)
    best, steps, executor = [float("inf")] * 2, 0, ""
    for _ in range(repeats):
        for place, pipe in enumerate(pipes):
            pipe.send(True)
            taken, steps, executor = pipe.recv()
            best[place] = min(best[place], taken)
    for process, pipe in zip(processes, pipes, strict=True):
        pipe.send(False)
        process.join()
    return {
        "model": name,
        "precision": precision,
        "threads": threads,
        "executor": executor,
        "plain_steps_per_s": steps / best[0],
        "fedhead_steps_per_s": steps / best[1],
        "ratio": best[0] / best[1],
    }


def main() -> None:
    """Measure and print one line a model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default="mlp,simplecnn,resnet20")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.models.split(","):
        for precision in options.precisions.split(","):
            row = measure(name, precision, options.repeats, options.threads)
            rows.append(row)
            print(
                f"{row['model']:10} {row['precision']} {row['executor']:6} plain {row['plain_steps_per_s']:8.1f} "
                f"fedhead {row['fedhead_steps_per_s']:8.1f} steps/s  ratio {row['ratio']:.2f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
