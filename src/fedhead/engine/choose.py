"""The choice of device and executor; `auto` times the executors briefly on the model at hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from fedhead import plan
from fedhead.engine.job import Executor, Job
from fedhead.engine.loop import Loop
from fedhead.engine.stack import Stack
from fedhead.errors import BadInput, unknown

if TYPE_CHECKING:
    from fedhead.engine.simulation import Simulation

EXECUTORS: dict[str, type[Loop] | type[Stack]] = {"loop": Loop, "stack": Stack}


def device(name: str) -> torch.device:
    """The device of a name: cpu, cuda, or auto (the GPU where there is one)."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise unknown("device", name, ["cpu", "cuda", "auto"])
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("device cuda: no GPU is visible to torch; use --device cpu or auto")
    return torch.device(name)


def named(name: str, simulation: Simulation) -> Executor:
    """The executor of a name."""
    if name not in EXECUTORS:
        raise unknown("executor", name, [*EXECUTORS, "auto"])
    return EXECUTORS[name]()


def executor(name: str, simulation: Simulation) -> Executor:
    """The executor of a name; `auto` times each on a few steps of the first round and takes the fastest."""
    if name != "auto":
        return named(name, simulation)
    task, method = simulation.task, simulation.method
    cohort = plan.cohort(task.seed, 1, simulation.holders, task.clients, task.participation)
    jobs = simulation.jobs(method, simulation.server, simulation.memory, cohort, 1)
    largest = max(jobs, key=lambda job: len(job.clients))
    if len(largest.clients) == 1:
        return Loop()
    return min((worker() for worker in EXECUTORS.values()), key=lambda worker: _seconds_a_client(worker, largest))


def _seconds_a_client(worker: Executor, job: Job, steps: int = 3) -> float:
    """The best of two timings of a few steps, a client; infinite for an executor that can't take the model."""
    clients = 2 if worker.name == "loop" else min(len(job.clients), 32)
    order = sorted(range(len(job.clients)), key=lambda k: -len(job.rows[k]))
    short = job.take(order[:clients]).first_steps(steps)
    best = float("inf")
    for attempt in range(3):  # the first only warms up
        begin = time.perf_counter()
        try:
            worker.run(short)
        except (RuntimeError, NotImplementedError) as error:
            if worker.name == "loop":
                raise
            print(f"notice: the {worker.name} executor can't take this model ({str(error).splitlines()[0]})")
            return float("inf")
        if short.program.pool.device.type == "cuda":
            torch.cuda.synchronize()
        if attempt:
            best = min(best, time.perf_counter() - begin)
    return best / len(short.clients)
