"""The plain loop: one client after another, the reference that every other executor is held to."""

from __future__ import annotations

import copy
import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from fedhead.algorithm.phase import Reply
from fedhead.executors.client_round import local_round
from fedhead.executors.job import Executor, Job
from fedhead.executors.program import Program, Vectorizer


class Loop(Executor):
    """Runs clients one after another, with the fastest memory layout of the device.

    On a CPU with several threads to use, as many loops run side by side, each on one thread: clients share nothing,
    while the threads inside an operation wait for each other. A client's numbers don't depend on how many loops
    there are.
    """

    name = "loop"

    def run(self, job: Job) -> list[Reply]:
        """The replies, in the order of the job's clients."""
        program = replace(job.program, channels_last=True)
        if program.pool.device.type != "cpu":
            return [_one(program, job, k) for k in range(len(job.clients))]
        return self._side_by_side(replace(program, in_place=True, pool=program.pool.channels_last()), job)

    def _side_by_side(self, program: Program, job: Job) -> list[Reply]:
        threads = torch.get_num_threads()
        workers = min(len(job.clients), threads)
        if workers == 1:
            return [_one(program, job, k) for k in range(len(job.clients))]
        spare: queue.SimpleQueue[Program] = queue.SimpleQueue()
        for _ in range(workers):
            # a model's tensors are swapped in and out while it runs: each loop needs a model of its own
            spare.put(replace(program, task=replace(program.task, model=copy.deepcopy(program.task.model))))

        def one(k: int) -> Reply:
            own = spare.get()
            try:
                return _one(own, job, k)
            finally:
                spare.put(own)

        try:
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return list(pool.map(one, range(len(job.clients))))
        finally:
            torch.set_num_threads(threads)  # torch keeps one number for all threads


def _one(program: Program, job: Job, k: int) -> Reply:
    return local_round(program, job.inputs(k), job.tables(k), Vectorizer())
