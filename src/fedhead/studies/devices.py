"""Engine of several devices: one process per device, each of which runs the next training of the queue."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.log import lines_to_stderr
from fedhead.core.system.process import exit_with_parent
from fedhead.engine.experiment.compute import Compute
from fedhead.studies.engines import LocalEngine, SharedEngine, make_engine
from fedhead.studies.queue import Queue
from fedhead.studies.run_job import RunJob


class DevicesEngine(LocalEngine):
    """Engine that runs jobs in several processes, one per device.

    Args:
        devices: Names of the devices.
        engine: Engine of each process. One that runs several jobs at once gets an equal share of all jobs at the
            beginning; another one gets the next job when it has finished one.
    """

    def __init__(self, devices: Sequence[str], engine: LocalEngine):
        self.devices, self.engine = devices, engine

    def device(self, compute: Compute) -> torch.device:
        """Return the device by which jobs are checked; each process has its own."""
        return self.engine.device(compute)

    def run(self, queue: Queue[RunJob]) -> None:
        """Run jobs until the queue is empty; the runs of a killed process fail."""
        shares = self._shares(queue)
        workers = [_Worker(name, self.engine, threads_per_process(self.devices)) for name in self.devices]
        try:
            for worker in workers:
                worker.begin(next(shares, []))
            while busy := {worker.connection: worker for worker in workers if worker.jobs}:
                for connection in wait(list(busy)):
                    worker = busy[connection]  # type: ignore[index]  # only connections were given
                    for job, failures in worker.receive():
                        queue.finish(job, failures)
                    if not worker.jobs:
                        worker.begin(next(shares, []))
        finally:
            for worker in workers:
                worker.end()
            for worker in workers:
                worker.join()

    def _shares(self, queue: Queue[RunJob]) -> Iterator[list[RunJob]]:
        jobs = iter(queue.next, None)
        if isinstance(self.engine, SharedEngine):
            everything = list(jobs)
            yield from (everything[number :: len(self.devices)] for number in range(len(self.devices)))
        yield from ([job] for job in jobs)


class _Worker:
    """Process of one device, started with its first job and after a crash.

    Attributes:
        jobs: Jobs that it has not finished, by their first run folder.
        connection: Connection to the process.
    """

    connection: Connection[Any, Any]

    def __init__(self, device: str, engine: LocalEngine, threads: int | None):
        self.device, self._arguments = device, (engine, threads, os.getpid())
        self.jobs: dict[Path, RunJob] = {}
        self._process: Any = None

    def begin(self, jobs: Sequence[RunJob]) -> None:
        """Send jobs to the process."""
        self.jobs = {next(iter(job.runs)): job for job in jobs}
        if jobs and self._process is None:
            self._start()
        if jobs:
            self.connection.send([replace(job, compute=replace(job.compute, device=self.device)) for job in jobs])

    def _start(self) -> None:
        context = get_context("spawn")  # a forked process can't use a GPU
        self.connection, inner = context.Pipe()
        self._process = context.Process(target=_work, args=(inner, *self._arguments))
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C reaches all, the parent handles it
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        inner.close()

    def receive(self) -> list[tuple[RunJob, Mapping[str, str]]]:
        """Return the next finished job and its failures; all unfinished jobs if the process has ended.

        Raises:
            Exception: The error that ended the process, if it affects all runs, such as a full disk.
        """
        try:
            path, outcome = self.connection.recv()
        except EOFError:
            self._process.join()
            reason = _ending(self.device, self._process.exitcode)
            self._process = None
            failed = [(job, dict.fromkeys(job.unfinished(), reason)) for job in self.jobs.values()]
            self.jobs = {}
            return failed
        if isinstance(outcome, Exception):
            raise outcome
        return [(self.jobs.pop(path), outcome)]

    def end(self) -> None:
        """End the process without waiting; an interrupted run resumes from its checkpoint."""
        if self._process is not None:
            self.connection.close()
            if self.jobs:
                self._process.kill()

    def join(self) -> None:
        """Wait for the end of the process."""
        if self._process is not None:
            self._process.join()


class _Received:
    """Queue of the jobs that a process has received; results are sent back at once."""

    def __init__(self, connection: Connection[Any, Any]):
        self._connection, self._jobs = connection, list(connection.recv())

    def next(self) -> RunJob | None:
        """Return the next job."""
        return self._jobs.pop(0) if self._jobs else None

    def finish(self, job: RunJob, result: Mapping[str, str]) -> None:
        """Send the result of a job."""
        self._connection.send((next(iter(job.runs)), result))


def _work(connection: Connection[Any, Any], engine: LocalEngine, threads: int | None, parent: int) -> None:
    """Run the jobs that a connection delivers, in a process of their own."""
    exit_with_parent(parent)
    if threads is not None:
        torch.set_num_threads(threads)
    with lines_to_stderr():
        while True:
            try:
                engine.run(_Received(connection))
            except EOFError:  # the parent has closed the connection
                return
            except Exception as error:  # affects all runs; the parent raises it
                connection.send((None, error))


def threads_per_process(devices: Sequence[str]) -> int | None:
    """Return the share of the host's threads of each GPU process; None: leave the number as it is.

    Processes with all threads each would oversubscribe the CPU. With a CPU device nothing is changed: the number of
    threads affects rounding.

    Args:
        devices: Names of the devices, one per process.
    """
    if "cpu" in devices or "OMP_NUM_THREADS" in os.environ:
        return None
    return max(1, torch.get_num_threads() // len(devices))


def engine_for(name: str, devices: str | None, device: str) -> LocalEngine:
    """Create the engine of a command.

    Args:
        name: Value of `--engine`.
        devices: Value of `--devices`; None: a single process.
        device: Value of `--device`.

    Raises:
        BadInput: There is no such engine or GPU, or both options name devices.
    """
    engine = make_engine(name)
    if devices is None:
        return engine
    require(device == "auto", "--devices says where to compute: leave --device out")
    return DevicesEngine(read_devices(devices), engine)


def read_devices(text: str) -> list[str]:
    """Parse the names of devices.

    >>> read_devices("0,1"), read_devices("cuda:1,cpu")
    (['cuda:0', 'cuda:1'], ['cuda:1', 'cpu'])
    """
    names = [f"cuda:{word}" if word.isdecimal() else word for word in re.split(r"[\s,]+", text.strip(", "))]
    if not names or not all(re.fullmatch(r"cpu|cuda(:\d+)?", name) for name in names):
        raise BadInput(f"--devices {text!r}: write the numbers of GPUs with commas between, such as 0,1")
    numbers = [int(name.partition(":")[2] or 0) for name in names if name != "cpu"]
    if numbers and max(numbers) >= (count := torch.cuda.device_count()):
        visible = f"torch sees {count}, numbered from 0" if count else "torch sees none"
        raise BadInput(f"--devices {text}: there is no GPU {max(numbers)}; {visible}")
    return names


def _ending(device: str, code: int) -> str:
    """Describe how the process of a device ended.

    >>> _ending("cpu", -9)
    'the process of cpu was ended by signal 9, perhaps for lack of memory'
    """
    if code >= 0:
        return f"the process of {device} failed, see above"
    memory = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
    return f"the process of {device} was ended by signal {-code}{memory}"
