"""Selection of device and executor; `auto` times each executor briefly on the model."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from fedhead.algorithm.task import Task
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput, first_line, require_known, unknown
from fedhead.core.system.log import warn_once
from fedhead.core.training import per_client_counts
from fedhead.executors.client.base import Executor
from fedhead.executors.client.client_round import local_round
from fedhead.executors.client.job import Job
from fedhead.executors.client.stack_errors import CannotStack
from fedhead.executors.compiling import choice as compile_choice
from fedhead.executors.compiling.process import compiler_process
from fedhead.executors.lanes.lanes import Lanes
from fedhead.executors.loop import Loop
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.shared_stack import SharedStack
from fedhead.executors.stack.stack import Stack
from fedhead.executors.stack.vectorize import VmapVectorizer

EXECUTORS = Registry.of(Executor, needs=["train"])
"""Registry of executors."""
BUILT_IN: dict[str, type[Executor]] = {"loop": Loop, "stack": Stack, "lanes": Lanes}
for _name, _executor in BUILT_IN.items():
    EXECUTORS.register(_name, _executor)


class Trainable(Protocol):
    """Simulation for which an executor is selected."""

    @property
    def device(self) -> torch.device:
        """Device of the training."""

    @property
    def task(self) -> Task:
        """Task of the run: model, data sizes and local training."""

    def jobs_of_round(self, number: int) -> list[Job]:
        """Return the jobs of a round, one per architecture."""


def device(name: str) -> torch.device:
    """Return a device by its name and make it the current device of this thread.

    Args:
        name: cpu, cuda, a GPU with its index such as cuda:1, or auto (a GPU if available).

    Raises:
        BadInput: For an unknown name or a missing GPU.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device(name)
    if re.fullmatch(r"cuda(:\d+)?", name) is None:
        raise unknown("device", name, ["cpu", "cuda", "cuda:1", "auto"])
    if not torch.cuda.is_available():
        raise BadInput(f"device {name}: no GPU is visible to torch; use cpu or auto")
    chosen = torch.device(name)
    if chosen.index is not None:
        if chosen.index >= torch.cuda.device_count():
            raise BadInput(f"device {name}: torch sees {torch.cuda.device_count()} GPU, numbered from 0")
        torch.cuda.set_device(chosen)  # streams and graphs use the thread's current GPU
    return chosen


COMPILE = {
    "auto": "while training goes on uncompiled, where it pays",
    "wait": "before training, where it pays",
    "never": "not at all",
}
"""Compile modes on a GPU. Lanes compile only with `wait`, since theirs takes minutes."""


def check_compile(name: str) -> str:
    """Check that a compile mode is one of `COMPILE`, and return it."""
    return require_known("compile", name, COMPILE)


# Above this number of distinct convolutions `auto` does not try the stack, which compiles kernels for each of them.
# Four architectures with 65 convolutions: the stack was not ready after 140 s, lanes were after 6 s.
MAX_CONVOLUTIONS = 40
TIMED_STEPS = 3  # steps per phase in a timing
TIMED_FOR = 0.1  # minimum seconds of timing per executor


def by_name(
    name: str,
    simulation: Trainable,
    compile: str = "auto",
    folders: Iterable[str | Path] = (),
) -> Executor:
    """Return an executor by its name.

    Args:
        name: Built-in name, package.module:Name or file.py:Name.
        simulation: Simulation to train.
        compile: Compile mode on a GPU, a key of `COMPILE`.
        folders: Folders to search for `file.py` before the working directory.
    """
    check_device(name, simulation.device)
    if name == "stack":
        return _stack(simulation.device, compile, lambda: pays_to_compile(simulation))
    if name == "lanes":
        return Lanes(compile=compile == "wait" and pays_to_compile(simulation))
    return BUILT_IN[name]() if name in BUILT_IN else own(name, folders)


def check_device(name: str, where: torch.device) -> None:
    """Check that an executor can run on a device.

    Raises:
        BadInput: For lanes without a GPU.
    """
    if name == "lanes" and where.type != "cuda":
        raise BadInput("executor lanes: its streams need a GPU; use stack, loop or auto")


def own(name: str, folders: Iterable[str | Path] = ()) -> Executor:
    """Return a user's executor by its name, such as file.py:Name."""
    kind = EXECUTORS.find(name, folders)
    kind.name = name  # the run folder stores this name
    return kind()


def shared_stack(where: torch.device, compile: str) -> SharedStack:
    """Return a stack for several runs; its steps are compiled on a GPU unless `compile` is never."""
    return SharedStack(_stack(where, compile, lambda: True))


def _stack(where: torch.device, compile: str, pays: Callable[[], bool]) -> Stack:
    if check_compile(compile) == "never" or where.type != "cuda" or not pays():
        return Stack(graphs=Graphs(compile=False))
    return Stack(graphs=Graphs(compiler=compiler_process() if compile == "auto" else None))


def pays_to_compile(simulation: Trainable) -> bool:
    """Return whether a run is long enough that compiling its step pays off."""
    program = simulation.jobs_of_round(1)[0].program
    return compile_choice.pays(client_steps(simulation), simulation.task.local.batch_size, program)


def client_steps(simulation: Trainable) -> float:
    """Return the approximate number of client steps of a run."""
    task, local = simulation.task, simulation.task.local
    if local.steps is not None:
        return task.rounds * task.participation * per_client_counts.mean(local.steps) * task.clients
    batches = sum(-(-size // local.batch_size) for size in task.sizes)
    return task.rounds * task.participation * per_client_counts.mean(local.epochs) * batches


def executor(name: str | Executor, simulation: Trainable, compile: str = "auto") -> Executor:
    """Return an executor by its name; an executor is returned unchanged.

    `auto` times the executors on a few steps of round 1 and selects the fastest. On a GPU, a single architecture that
    can be stacked gets the stack without timing, since the stack is many times faster than the others. Architectures
    with many distinct convolutions get lanes. The loop is the fallback if no other executor can run the model.

    Args:
        name: `auto`, a name as for `Registry.find`, or an executor.
        simulation: Simulation to train.
        compile: Compile mode on a GPU, a key of `COMPILE`. A stack is compiled before it is timed.
    """
    if isinstance(name, Executor):
        return name
    if name != "auto":
        return by_name(name, simulation, compile)
    if not simulation.task.rounds:  # nothing to time
        return Loop()
    jobs = simulation.jobs_of_round(1)
    if sum(len(job.clients) for job in jobs) == 1:
        return Loop()
    on_gpu = simulation.device.type == "cuda"
    if on_gpu and len(jobs) == 1 and can_stack(jobs[0]):
        return by_name("stack", simulation, compile)
    if on_gpu and jobs[0].program.privacy is None:
        names = ["lanes"] if len(jobs) == 1 or convolutions(jobs) > MAX_CONVOLUTIONS else ["stack", "lanes"]
    else:
        names = ["stack", "loop"]
    first = "wait" if compile == "auto" else compile  # an uncompiled stack would look too slow
    workers = [by_name(n, simulation, first if n == "stack" else compile) for n in names]
    timed = [(seconds_per_client(worker, jobs), worker) for worker in workers]
    seconds, best = min(timed, key=lambda pair: pair[0])
    return best if seconds < float("inf") else Loop()


def convolutions(jobs: list[Job]) -> int:
    """Return the number of distinct convolutions that would need a compiled stack kernel."""
    distinct = set()
    for job in jobs:
        for layer in job.program.task.model.modules():
            if isinstance(layer, nn.Conv2d) and layer.groups == 1:
                distinct.add((layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride))
    return len(distinct)


def can_stack(job: Job) -> bool:
    """Return whether the job can be stacked; tries one step of two clients."""
    short = job.take(_longest(job, 2)).truncated(1)
    try:
        local_round(job.program, short.stacked_inputs(), short.stacked_batches(), VmapVectorizer())
    except (RuntimeError, NotImplementedError, CannotStack) as error:
        warn_once(f"the stack executor can't take this model ({first_line(error)})")
        return False
    return True


def seconds_per_client(worker: Executor, jobs: list[Job]) -> float:
    """Return the best time of a few steps, per client; infinite if the executor can't run the models."""
    short = [
        job.take(_longest(job, 2 if worker.name == "loop" else len(job.clients))).truncated(TIMED_STEPS) for job in jobs
    ]
    times: list[float] = []
    # The first run is a warm-up. Small models are timed more often, against noise from other processes.
    while len(times) < 3 or sum(times[1:]) < TIMED_FOR:
        begin = time.perf_counter()
        try:
            worker.run(short)
        except (RuntimeError, NotImplementedError, CannotStack) as error:
            if worker.name == "loop":
                raise
            warn_once(f"the {worker.name} executor can't take this model ({first_line(error)})")
            return float("inf")
        if short[0].program.pool.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times[1:]) / sum(len(job.clients) for job in short)


def _longest(job: Job, count: int) -> list[int]:
    return sorted(range(len(job.clients)), key=lambda k: -len(job.indices[k]))[:count]
