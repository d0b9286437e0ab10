"""The plain loop: one client after another, the reference for every other executor."""

from __future__ import annotations

import copy
import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from fedhead.algorithm.phase import Reply
from fedhead.core.system.log import logger
from fedhead.core.training import global_generators, random
from fedhead.executors.client.base import Executor
from fedhead.executors.client.client_round import local_round
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import ClientProgram, Vectorizer
from fedhead.executors.client.undo import Undo


class Loop(Executor):
    """Runs clients one after another, with the fastest memory format of the device.

    On a CPU with several threads, several loops run in parallel, each on one thread: clients are independent, while
    threads inside an operation wait for each other. A client's numbers don't depend on the number of loops.

    What users' code draws from the generators that everyone shares (`torch.rand(())` in a loss) is decided by the run's
    seed, the round and the client. Loops that run in parallel share these generators: where such a draw is seen, the
    round is run again, from then on one client after another. What hooks have changed in the attributes of the method
    and the uploads is undone before, also inside of lists, dicts, sets, and tensors and arrays up to 16 MiB of each;
    what they have changed inside of other objects, such as a module or a file, is not.

    Args:
        seeded: Whether such draws are decided by the seed. A real site's are not: the server, which knows the seed,
            must not know what a site adds to its reply.
    """

    name = "loop"
    _seeded = True  # here, since a subclass may have its own __init__
    _draws = False  # whether users' code was seen to draw

    def __init__(self, seeded: bool = True):
        self._seeded = seeded

    def run(self, job: Job) -> list[Reply]:
        """Return the replies in the order of the job's clients."""
        program, device = replace(job.program, channels_last=True), job.program.pool.device
        if device.type == "cpu":
            program = replace(program, in_place=True, pool=program.pool.channels_last())
        if not self._seeded:
            return self._run(program, job)
        if not self._draws:
            before = global_generators.states(device)
            changes = [Undo(part) for part in (program.algorithm, *program.uploads)]
            replies = self._run(program, job)
            if global_generators.states(device) == before:
                return replies
            self._draws = True
            logger.info(
                "%s or its model draws from a global generator: clients train one after another, seeded for each",
                program.algorithm.name,
            )
            for one in changes:
                one.put_back()
        return self._run_seeded(program, job)

    def _run(self, program: ClientProgram, job: Job) -> list[Reply]:
        if program.pool.device.type == "cpu":
            return self._run_in_threads(program, job)
        return [_run_client(program, job, k) for k in range(len(job.clients))]

    def _run_seeded(self, program: ClientProgram, job: Job) -> list[Reply]:
        threads = torch.get_num_threads()
        if program.pool.device.type == "cpu" and len(job.clients) > 1:
            torch.set_num_threads(1)  # as each of several loops has
        try:
            return [_run_client_seeded(program, job, k) for k in range(len(job.clients))]
        finally:
            torch.set_num_threads(threads)

    def _run_in_threads(self, program: ClientProgram, job: Job) -> list[Reply]:
        threads = torch.get_num_threads()
        workers = min(len(job.clients), threads)
        if workers == 1:
            return [_run_client(program, job, k) for k in range(len(job.clients))]
        free_programs: queue.SimpleQueue[ClientProgram] = queue.SimpleQueue()
        for _ in range(workers):
            # a model's tensors are swapped in and out while it runs, so each worker needs its own copy
            free_programs.put(replace(program, task=replace(program.task, model=copy.deepcopy(program.task.model))))

        def run(k: int) -> Reply:
            program_copy = free_programs.get()
            try:
                return _run_client(program_copy, job, k)
            finally:
                free_programs.put(program_copy)

        try:
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return list(pool.map(run, range(len(job.clients))))
        finally:
            torch.set_num_threads(threads)  # the setting is shared by all threads


def _run_client(program: ClientProgram, job: Job, k: int) -> Reply:
    return local_round(program, job.inputs(k), job.batches(k), Vectorizer())


def _run_client_seeded(program: ClientProgram, job: Job, k: int) -> Reply:
    key = random.key(program.task.seed, "global", program.algorithm.name, job.round, job.clients[k])
    with global_generators.seeded(key, program.pool.device):
        return _run_client(program, job, k)
