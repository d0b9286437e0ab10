"""The choice of device and executor; `auto` times the executors briefly on the model at hand."""

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
"""The executors by name."""
BUILT_IN: dict[str, type[Executor]] = {"loop": Loop, "stack": Stack, "lanes": Lanes}
for _name, _executor in BUILT_IN.items():
    EXECUTORS.register(_name, _executor)


class Trainable(Protocol):
    """A federation that is about to train, for which an executor is chosen."""

    @property
    def device(self) -> torch.device:
        """Where it trains."""

    @property
    def task(self) -> Task:
        """Its sizes and settings."""

    def jobs_of_round(self, number: int) -> list[Job]:
        """The work of a round, one job per architecture."""


def device(name: str) -> torch.device:
    """Return the device of a name, and make it the one that this thread computes on.

    Args:
        name: cpu, cuda, a GPU by its number as in cuda:1, or auto (the GPU where there is one).

    Raises:
        BadInput: For another name, or where there is no such GPU.
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
        torch.cuda.set_device(chosen)  # streams and graphs belong to the thread's current GPU
    return chosen


COMPILE = {
    "auto": "while training goes on uncompiled, where it pays",
    "wait": "before training, where it pays",
    "never": "not at all",
}
"""When steps are compiled on a GPU; those of lanes, which take minutes, only with `wait`."""


def check_compile(name: str) -> str:
    """Return the name, if it is one of `COMPILE`."""
    return require_known("compile", name, COMPILE)


# Architectures that have more different convolutions together are not tried as stacks, whose kernels are compiled for
# each convolution. Stacks of four architectures with 65 were not ready after 140 s; their lanes were after 6.
MAX_CONVOLUTIONS = 40
TIMED_STEPS = 3  # of each phase
TIMED_FOR = 0.1  # seconds that an executor is timed for, at least


def by_name(
    name: str,
    simulation: Trainable,
    compile: bool | str = "auto",
    folders: Iterable[str | Path] = (),
) -> Executor:
    """Return the executor of a name.

    Args:
        name: A built-in name, package.module:Name or file.py:Name.
        simulation: What it is to train.
        compile: When steps are compiled on a GPU, as in `COMPILE`; True: those of a stack before it trains, also where
            that takes longer than it saves.
        folders: Where `file.py` is looked for, before the working directory.
    """
    check_device(name, simulation.device)
    return own(name, folders) if name not in BUILT_IN else _built_in(name, simulation, compile)


def check_device(name: str, where: torch.device) -> None:
    """Refuse an executor that can't run on a device.

    Raises:
        BadInput: Lanes are asked for where there is no GPU.
    """
    if name == "lanes" and where.type != "cuda":
        raise BadInput("executor lanes: its streams need a GPU; use stack, loop or auto")


def own(name: str, folders: Iterable[str | Path] = ()) -> Executor:
    """Return the user's own executor of a name such as file.py:Name."""
    kind = EXECUTORS.find(name, folders)
    kind.name = name  # by which a run folder finds it again
    return kind()


def _built_in(name: str, simulation: Trainable, compile: bool | str) -> Executor:
    if name == "lanes":
        return Lanes(compile=compile == "wait" and pays_to_compile(simulation))
    if name != "stack":
        return BUILT_IN[name]()
    if isinstance(compile, bool):
        return Stack(graphs=Graphs(compile=compile))
    return _stack(simulation.device, compile, lambda: pays_to_compile(simulation))


def shared_stack(where: torch.device, compile: str) -> SharedStack:
    """Return a stack for several runs, whose steps are compiled on a GPU unless `compile` is never."""
    return SharedStack(_stack(where, compile, lambda: True))


def _stack(where: torch.device, compile: str, pays: Callable[[], bool]) -> Stack:
    if check_compile(compile) == "never" or where.type != "cuda" or not pays():
        return Stack(graphs=Graphs(compile=False))
    return Stack(graphs=Graphs(compiler=compiler_process() if compile == "auto" else None))


def pays_to_compile(simulation: Trainable) -> bool:
    """Return whether a run takes long enough to compile its step first."""
    program = simulation.jobs_of_round(1)[0].program
    return compile_choice.pays(client_steps(simulation), simulation.task.local.batch_size, program)


def client_steps(simulation: Trainable) -> float:
    """About how many steps all clients will take in a run."""
    task, local = simulation.task, simulation.task.local
    if local.steps is not None:
        return task.rounds * task.participation * per_client_counts.mean(local.steps) * task.clients
    batches = sum(-(-size // local.batch_size) for size in task.sizes)
    return task.rounds * task.participation * per_client_counts.mean(local.epochs) * batches


def executor(name: str | Executor, simulation: Trainable, compile: str = "auto") -> Executor:
    """Return the executor of a name, or the one given.

    `auto` times each on a few steps of round 1 and takes the fastest. On a GPU the stack, many times as fast as the
    others, is taken untimed if there is one architecture and it can be stacked; architectures with many different
    convolutions get lanes; and the plain loop is the fallback, taken when neither of the others can run the model.

    Args:
        name: `auto`, a name as for `Registry.find`, or an executor.
        simulation: What it is chosen for.
        compile: When steps are compiled on a GPU, as in `COMPILE`. A stack that is timed is compiled before.
    """
    if isinstance(name, Executor):
        return name
    if name != "auto":
        return by_name(name, simulation, compile)
    if not simulation.task.rounds:  # there is no training to time
        return Loop()
    jobs = simulation.jobs_of_round(1)
    if sum(len(job.clients) for job in jobs) == 1:
        return Loop()
    on_gpu = simulation.device.type == "cuda"
    if on_gpu and len(jobs) == 1 and can_stack(jobs[0]):
        return _built_in("stack", simulation, compile)
    if on_gpu:
        names = ["lanes"] if len(jobs) == 1 or convolutions(jobs) > MAX_CONVOLUTIONS else ["stack", "lanes"]
    else:
        names = ["stack", "loop"]
    first = "wait" if compile == "auto" else compile  # a stack that is timed uncompiled would look too slow
    workers = [_built_in(n, simulation, first if n == "stack" else compile) for n in names]
    timed = [(seconds_per_client(worker, jobs), worker) for worker in workers]
    seconds, best = min(timed, key=lambda pair: pair[0])
    return best if seconds < float("inf") else Loop()


def convolutions(jobs: list[Job]) -> int:
    """Return how many different convolutions the architectures of a round have for which a stack has kernels."""
    found = set()
    for job in jobs:
        for layer in job.program.task.model.modules():
            if isinstance(layer, nn.Conv2d) and layer.groups == 1:
                found.add((layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride))
    return len(found)


def can_stack(job: Job) -> bool:
    """Return whether a step of two clients can be vectorized."""
    short = job.take(_longest(job, 2)).truncated(1)
    try:
        local_round(job.program, short.stacked_inputs(), short.stacked_batches(), VmapVectorizer())
    except (RuntimeError, NotImplementedError, CannotStack) as error:
        warn_once(f"the stack executor can't take this model ({first_line(error)})")
        return False
    return True


def seconds_per_client(worker: Executor, jobs: list[Job]) -> float:
    """Return the best of several timings of a few steps, per client; infinite if the executor can't run the models."""
    short = [
        job.take(_longest(job, 2 if worker.name == "loop" else len(job.clients))).truncated(TIMED_STEPS) for job in jobs
    ]
    times: list[float] = []
    # The first only warms up. Small models are timed more often: a moment's load on the machine must not decide.
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
    return sorted(range(len(job.clients)), key=lambda k: -len(job.rows[k]))[:count]
