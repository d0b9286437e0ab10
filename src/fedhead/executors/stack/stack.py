"""Stack executor: many clients at once, their tensors stacked along a leading axis (`torch.func.vmap`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedhead.algorithm.phase import Reply
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.core.tree.finite import FiniteCheck
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import as_rows, with_own_rows
from fedhead.executors.client.base import Executor, ExecutorReport
from fedhead.executors.client.client_round import local_round, train_eagerly
from fedhead.executors.client.job import Job
from fedhead.executors.client.job_tables import stack_order
from fedhead.executors.client.reply_set import ReplyRows, ReplySet
from fedhead.executors.client.stack_errors import explain
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.vectorize import VmapVectorizer

# Limits of stacks of small models on a GPU, which may hold more clients than `default_size`.
MAX_CLIENTS = 1024
MAX_BYTES = 4 << 30
COPIES_PER_CLIENT = 10  # memory of a client, in multiples of its message and state


def default_size(device: torch.device) -> int:
    """Return the maximum number of clients per stack; larger on a GPU, where waiting clients take little memory."""
    return 128 if device.type == "cuda" else 64


def _default_size_for(job: Job) -> int:
    """Return the maximum number of clients per stack for a job; larger for small models on a GPU."""
    device = job.program.pool.device
    if device.type == "cpu":
        return default_size(device)
    size = job.broadcast.nbytes + job.per_client[0].nbytes + as_rows(job.states).take([0]).nbytes
    return max(default_size(device), min(MAX_CLIENTS, MAX_BYTES // max(COPIES_PER_CLIENT * size, 1)))


class Stack(Executor):
    """Executor that trains clients in stacks, sorted by steps in every phase, so that active clients are a prefix.

    On a GPU the clients pass through a fixed number of slots, whose steps are compiled and replayed as CUDA graphs.
    Each architecture has its own stack. On a GPU the stacks train concurrently, one stream each. When memory runs out,
    the stacks are halved.

    Args:
        size: Maximum number of clients per stack; None: `default_size`, or more for small models on a GPU.
        graphs: Trainer of the steps on a GPU.
    """

    name = "stack"

    def __init__(self, size: int | None = None, graphs: Graphs | None = None):
        self.size = size
        self.graphs = graphs or Graphs()
        self._streams: list[torch.cuda.Stream] = []  # one per architecture
        self._computed: list[Tree] = []  # messages and states of stacked replies
        self._report = ExecutorReport()

    def run(self, jobs: Sequence[Job]) -> ReplySet:
        """Train the clients of several jobs, one per architecture."""
        self._computed.clear()
        replies = self.train_all(jobs)
        if any(getattr(type(self), hook) is not getattr(Stack, hook) for hook in ("train", "train_all")):
            return ReplySet.of_jobs(self.name, jobs, replies)  # a user's subclass may have changed the replies
        check = FiniteCheck(self._computed)  # runs asynchronously on a GPU
        self._computed.clear()
        return ReplySet.of_jobs(self.name, jobs, replies, check.result)

    def report(self) -> ExecutorReport:
        """Return the compile time and the compilation status."""
        return self._report

    def train_all(self, jobs: Sequence[Job]) -> list[Sequence[Reply]]:
        """Train each job and return its replies; on a GPU jobs train concurrently, one stream each."""
        if len(jobs) == 1 or jobs[0].program.pool.device.type == "cpu":
            return [self.train(job) for job in jobs]
        while len(self._streams) < len(jobs):
            self._streams.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]  # torch leaves it untyped
        main = torch.cuda.current_stream()
        replies: list[Sequence[Reply]] = []
        try:
            for stream, job in zip(self._streams, jobs, strict=False):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    replies.append(self.train(job))  # asynchronous once the graphs are captured
        finally:
            for stream in self._streams:
                main.wait_stream(stream)
        return replies

    def train(self, job: Job) -> Sequence[Reply]:
        """Train a job; replies are in the order of its clients, and those of a single stack stay stacked."""
        replies: dict[int, Reply] = {}
        for order in by_steps(job):
            done = 0
            while done < len(order):
                size = self.size or _default_size_for(job)
                places = order[done : done + size]
                try:
                    rows = self._train_stack(job.take(places))
                    if len(places) == len(job.clients):
                        return rows.take(sorted(range(len(places)), key=places.__getitem__))
                    replies.update(zip(places, rows, strict=True))
                    done += len(places)
                except torch.OutOfMemoryError:
                    self._halve(len(places))
                except RuntimeError as error:
                    if (explained := explain(error)) is None:
                        raise
                    raise explained from error
        return [replies[k] for k in range(len(job.clients))]

    def _train_stack(self, job: Job) -> ReplyRows:
        on_cpu = job.program.pool.device.type == "cpu"
        program = job.program
        # a CUDA graph would repeat the noise that it was captured with
        train = train_eagerly if on_cpu or program.privacy is not None else self.graphs
        if not isinstance(program.algorithm, Stage):
            self.graphs.begin_round(job.round, job.compiled)
        before = self.graphs.compile_seconds
        # no buckets on a CPU: other batch shapes round differently, and recorded results would change
        vectorizer = VmapVectorizer(None if on_cpu else [len(indices) for indices in job.indices])
        reply = local_round(program, job.stacked_inputs(), job.stacked_batches(), vectorizer, train)
        reply = reply._replace(keep=with_own_rows(reply.keep))
        compile_seconds = self._report.compile_seconds + self.graphs.compile_seconds - before
        self._report = ExecutorReport(compile_seconds, self.graphs.compiled)
        self._computed += [reply.send, reply.keep]
        return ReplyRows.of_stack(reply, len(job.clients))

    def _halve(self, count: int) -> None:
        if count == 1:
            raise BadInput("not even one client fits into memory: use a smaller batch_size or model")
        self.size = count // 2
        self.graphs.clear()
        warn_once(f"out of memory with {count} clients at once: continuing with {self.size}")


def by_steps(job: Job) -> list[list[int]]:
    """Partition a job's clients with `stack_order`.

    Args:
        job: Job of the clients.
    """
    steps = [[len(schedule) for schedule in phases] for phases in job.schedules]
    return stack_order(steps, [len(indices) for indices in job.indices])
