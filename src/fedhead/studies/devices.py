"""Engine of several devices: one process per device, each of which runs the next training of the queue."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context

import torch

from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.log import log_to_stderr
from fedhead.core.system.process import exit_with_parent
from fedhead.engine.experiment.compute import Compute
from fedhead.studies.engines import LocalEngine, SharedEngine, make_engine
from fedhead.studies.queue import Queue
from fedhead.studies.run_job import RunJob

Failures = dict[str, Mapping[str, str]]  # reasons of failed runs, by the name of the first run of a job


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
        busy: dict[Future[Failures], tuple[_Worker, list[RunJob]]] = {}

        def begin(worker: _Worker) -> None:
            if jobs := next(shares, []):
                busy[worker.submit(jobs)] = worker, jobs

        try:
            for worker in workers:
                begin(worker)
            while busy:
                for future in wait(busy, return_when=FIRST_COMPLETED).done:
                    worker, jobs = busy.pop(future)
                    failures = worker.failures(future, jobs)
                    for job in jobs:
                        queue.finish(job, failures[job.name])
                    begin(worker)
        finally:
            for worker, _ in busy.values():
                worker.kill()
            for worker in workers:
                worker.close()

    def _shares(self, queue: Queue[RunJob]) -> Iterator[list[RunJob]]:
        jobs = iter(queue.next, None)
        if isinstance(self.engine, SharedEngine):
            everything = list(jobs)
            yield from (everything[number :: len(self.devices)] for number in range(len(self.devices)))
        yield from ([job] for job in jobs)


class _Worker:
    """Process of one device, started with its first jobs and after a crash."""

    def __init__(self, device: str, engine: LocalEngine, threads: int | None):
        self.device, self._engine = device, engine
        self._arguments = (os.getpid(), threads)
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, jobs: Sequence[RunJob]) -> Future[Failures]:
        """Start jobs on the device."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C reaches all, the parent handles it
        try:
            if self._pool is None:
                context = get_context("spawn")  # a forked process can't use a GPU
                self._pool = ProcessPoolExecutor(1, context, _initialize_worker, self._arguments)
                self._id = self._pool.submit(os.getpid)
            here = [replace(job, compute=replace(job.compute, device=self.device)) for job in jobs]
            return self._pool.submit(_run_jobs, self._engine, here)
        except BrokenProcessPool:  # the process died between two jobs
            self.close()
            return self.submit(jobs)
        finally:
            signal.signal(signal.SIGINT, before)

    def failures(self, future: Future[Failures], jobs: Sequence[RunJob]) -> Failures:
        """Return the failures of finished jobs; all unfinished runs fail if the process was killed.

        Raises:
            Exception: The error that ended the jobs, if it affects all runs, such as a full disk.
        """
        try:
            return future.result()
        except BrokenProcessPool:
            self.close()
            reason = f"the process of {self.device} was killed, perhaps for lack of memory"
            return {job.name: dict.fromkeys(job.unfinished(), reason) for job in jobs}

    def kill(self) -> None:
        """Kill the process; an interrupted run resumes from its checkpoint."""
        with suppress(BrokenProcessPool):
            os.kill(self._id.result(), signal.SIGKILL)

    def close(self) -> None:
        """Wait for the end of the process."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class _JobList:
    """Queue of the jobs that a process has received."""

    def __init__(self, jobs: Sequence[RunJob]):
        self._jobs = list(jobs)
        self.failures: Failures = {}

    def next(self) -> RunJob | None:
        """Return the next job."""
        return self._jobs.pop(0) if self._jobs else None

    def finish(self, job: RunJob, result: Mapping[str, str]) -> None:
        """Record the result of a job."""
        self.failures[job.name] = result


def _initialize_worker(parent: int, threads: int | None) -> None:
    exit_with_parent(parent)
    if threads is not None:
        torch.set_num_threads(threads)


def _run_jobs(engine: LocalEngine, jobs: Sequence[RunJob]) -> Failures:
    """Run jobs in a process of their own, and return their failures."""
    job_list = _JobList(jobs)
    with log_to_stderr():
        engine.run(job_list)
    return job_list.failures


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
    """Parse the names of devices: 0,1 are the GPUs cuda:0 and cuda:1.

    >>> read_devices("cpu, cpu")
    ['cpu', 'cpu']
    """
    names = [f"cuda:{word}" if word.isdecimal() else word for word in re.split(r"[\s,]+", text.strip(", "))]
    if not names or not all(re.fullmatch(r"cpu|cuda(:\d+)?", name) for name in names):
        raise BadInput(f"--devices {text!r}: write the numbers of GPUs with commas between, such as 0,1")
    numbers = [int(name.partition(":")[2] or 0) for name in names if name != "cpu"]
    if numbers and max(numbers) >= (count := torch.cuda.device_count()):
        visible = f"torch sees {count}, numbered from 0" if count else "torch sees none"
        raise BadInput(f"--devices {text}: there is no GPU {max(numbers)}; {visible}")
    return names
