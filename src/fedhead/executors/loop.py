"""Loop executor: trains clients one after another. Reference for all other executors."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from fedhead.algorithm.phase import Reply
from fedhead.executors.client.base import Executor
from fedhead.executors.client.client_round import local_round
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import ClientProgram, Vectorizer


class Loop(Executor):
    """Executor that trains clients one after another, in the fastest memory format of the device.

    On a CPU, one loop per thread runs in parallel. Clients are independent, whereas threads inside an operation wait
    for each other. Results don't depend on the number of threads.
    """

    name = "loop"

    def train(self, job: Job) -> list[Reply]:
        """Train the clients of a job; replies are in the order of its clients."""
        program = replace(job.program, channels_last=True)
        if program.pool.device.type == "cpu":
            return self._run_in_threads(replace(program, in_place=True, pool=program.pool.channels_last()), job)
        return [_run_client(program, job, k) for k in range(len(job.clients))]

    def _run_in_threads(self, program: ClientProgram, job: Job) -> list[Reply]:
        threads = torch.get_num_threads()
        workers = min(len(job.clients), threads)
        if workers == 1:
            return [_run_client(program, job, k) for k in range(len(job.clients))]
        worker = threading.local()

        def begin() -> None:
            torch.set_num_threads(1)
            # training swaps the model's tensors, so each worker needs its own copy
            model = copy.deepcopy(program.task.model)
            worker.program = replace(program, task=replace(program.task, model=model))

        try:
            with ThreadPoolExecutor(workers, initializer=begin) as pool:
                return list(pool.map(lambda k: _run_client(worker.program, job, k), range(len(job.clients))))
        finally:
            torch.set_num_threads(threads)  # global to all threads


def _run_client(program: ClientProgram, job: Job, k: int) -> Reply:
    return local_round(program, job.inputs(k), job.batches(k), Vectorizer())
