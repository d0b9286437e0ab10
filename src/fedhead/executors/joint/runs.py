"""Runs that train together: the clients of several seeds in one stack, so that small federations fill a GPU too.

Each run proceeds in its own thread, one at a time: threads that compete for the interpreter slow each other down. Where
a run trains its clients, or computes something else that can be computed for several runs at once, it waits until all
other runs are waiting too; then one call serves all that are at the same point.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from fedhead.algorithm.phase import Reply
from fedhead.core.tree.finite import all_finite
from fedhead.core.tree.tree import Tree
from fedhead.executors.client.base import Executor, Prepare
from fedhead.executors.client.job import Job
from fedhead.executors.client.shared_work import SharedWork
from fedhead.executors.joint.jobs import JointJobs
from fedhead.executors.stack.reply_stack import ReplyStack

T = TypeVar("T")
R = TypeVar("R")
_TRAIN, _AFTER = 0, 1  # the points of a round at which runs wait


@dataclass
class _Request:
    member: int
    point: tuple[int, int]  # the round, and where in the round
    function: Callable[[list[Any]], Sequence[Any]]  # in place of a result it may return an error
    item: Any
    result: Any = None
    error: BaseException | None = None
    done: bool = False


@dataclass(frozen=True)
class _Trained:
    """The replies of a run's jobs."""

    replies: list[Sequence[Reply]]
    finite: bool  # whether all numbers are, those of the runs beside it too


class JointRuns:
    """Computes for several runs at once what they wait for.

    Args:
        worker: Executor that trains the stacks.
        mix_hyperparameters: Whether runs that differ only in hyperparameters share a stack.

    Attributes:
        turn: The lock that a run holds while it proceeds; it is given up while the run waits.
        shared: What the runs compute once.
    """

    def __init__(self, worker: Executor, mix_hyperparameters: bool = False):
        self.worker = worker
        self.turn = threading.Condition()
        self.shared = SharedWork()
        self._jobs = JointJobs(worker, mix_hyperparameters)
        self._members = 0
        self._joined = 0
        self._waiting: list[_Request] = []
        self._stopped: BaseException | None = None

    def join(self) -> Executor:
        """Return an executor for one more run; all runs must have joined before any of them starts."""
        with self.turn:
            self._members += 1
            self._joined += 1
        return _Member(self, self._joined)

    def leave(self) -> None:
        """Tell that a run has ended, so that the others no longer wait for it."""
        with self.turn:
            self._members -= 1
            self._serve_if_all_wait()

    def stop(self, error: BaseException) -> None:
        """Let every run end with an error as soon as it waits for the others; no lock is needed for that."""
        self._stopped = error

    def raise_if_stopped(self) -> None:
        """Raise the error by which all runs end, where there is one."""
        if self._stopped is not None:
            raise self._stopped

    def train_and_prepare(self, member: int, jobs: list[Job], prepare: Prepare) -> _Trained:
        """Wait for the other runs, then train with them.

        Args:
            member: The number of the run.
            jobs: Its jobs.
            prepare: Prepares its next round, after the clients of all runs were given to the worker.
        """
        return self.compute(member, (jobs[0].round, _TRAIN), self._train, (jobs, prepare))

    def compute(
        self, member: int, point: tuple[int, int], function: Callable[[list[T]], Sequence[R | Exception]], item: T
    ) -> R:
        """Wait for the other runs, then return what a function of the items of all that came here makes of this one."""
        request = _Request(member, point, function, item)
        with self.turn:
            self._waiting.append(request)
            self._serve_if_all_wait()
            self.turn.wait_for(lambda: request.done)
        if request.error is not None:
            raise request.error
        found: R = request.result
        return found

    def _serve_if_all_wait(self) -> None:
        if self._stopped is not None:
            for request in self._waiting:
                request.error, request.done = self._stopped, True
            self._waiting = []
            self.turn.notify_all()
        if not self._waiting or len(self._waiting) < self._members:
            return
        # resumed runs may be at different rounds: those behind go first until all are at the same
        behind = min(request.point for request in self._waiting)
        # always in the same order: what is compiled for a stack is found again by its first run
        now = sorted((r for r in self._waiting if r.point == behind), key=lambda request: request.member)
        self._waiting = [request for request in self._waiting if request.point != behind]
        for function in dict.fromkeys(request.function for request in now):
            requests = [request for request in now if request.function == function]
            self._serve(requests)
        for request in now:
            request.done = True
        self.turn.notify_all()

    def _serve(self, requests: list[_Request]) -> None:
        """Compute what several runs wait for; where that fails, for each by itself: only those that fail must end."""
        try:
            found = requests[0].function([request.item for request in requests])
            for request, result in zip(requests, found, strict=True):
                if isinstance(result, Exception):
                    request.error = result
                else:
                    request.result = result
        except BaseException as error:  # any error must reach the waiting threads
            if len(requests) > 1 and isinstance(error, Exception):
                for request in requests:
                    self._serve([request])
            else:
                for request in requests:
                    request.error = error

    def _train(self, runs: list[tuple[list[Job], Prepare]]) -> list[_Trained | Exception]:
        jobs = [job for own, _ in runs for job in own]
        outcome = iter(self._jobs.train(jobs))
        # all runs prepare their next round before a GPU is waited for
        prepared = [_prepare([next(outcome) for _ in own], prepare) for own, prepare in runs]
        found = [replies for each in prepared if not isinstance(each, Exception) for replies in each]
        sent = (tree for replies in found for reply in replies for tree in (reply.send, reply.keep))
        finite = self._jobs.replies_finite or all_finite(sent)
        if jobs[0].program.pool.device.type == "cuda":
            found = _losses_on_host(found)
        trained = iter(found)
        return [
            each if isinstance(each, Exception) else _Trained([next(trained) for _ in each], finite)
            for each in prepared
        ]


def _prepare(found: list[Sequence[Reply] | Exception], prepare: Prepare) -> list[Sequence[Reply]] | Exception:
    """Prepare the next round of one run; return its replies, or the error by which this run, and no other, ends.

    Args:
        found: The replies of each of its jobs, or why there are none.
        prepare: Prepares the round.
    """
    failed = next((one for one in found if isinstance(one, Exception)), None)
    if failed is not None:
        return failed
    replies = [one for one in found if not isinstance(one, Exception)]
    try:
        prepare(replies)
    except Exception as error:  # a user's sampler may raise anything
        return error
    return replies


def _losses_on_host(found: list[Sequence[Reply]]) -> list[Sequence[Reply]]:
    """Return replies with the losses of their steps in the host's memory, where a GPU is waited for once for all."""
    whole = {id(one.stacked): one.stacked for one in found if isinstance(one, ReplyStack)}
    copied = {key: stacked._replace(losses=stacked.losses.to("cpu")) for key, stacked in whole.items()}
    single = [reply for one in found if not isinstance(one, ReplyStack) for reply in one]
    there = [reply.losses["train"] for reply in single if "train" in reply.losses]
    values = iter(torch.stack(there).cpu().unbind() if there else ())

    def with_loss(reply: Reply) -> Reply:
        return reply._replace(losses=Tree(train=next(values))) if "train" in reply.losses else reply

    return [
        ReplyStack(copied[id(one.stacked)], one.send.rows)
        if isinstance(one, ReplyStack)
        else [with_loss(reply) for reply in one]
        for one in found
    ]


def run_together(
    worker: Executor, runs: Sequence[Callable[[Executor], T]], *, mix_hyperparameters: bool = False
) -> list[T]:
    """Run several functions in turns, each with its own executor, and return their results.

    A run that fails does not stop the others; its error is raised when all have ended. An interrupt ends all of them as
    soon as the one that proceeds waits for the others.

    Args:
        worker: Executor that trains the clients of all runs.
        runs: Functions of an executor.
        mix_hyperparameters: Whether runs that differ only in hyperparameters, such as the learning rate, share a stack.

    Returns:
        The result of each function.
    """
    joint_runs = JointRuns(worker, mix_hyperparameters)
    found: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(index: int, member: Executor) -> None:
        with joint_runs.turn:
            try:
                joint_runs.raise_if_stopped()
                found[index] = runs[index](member)
            except BaseException as error:  # raised below, in the caller's thread
                errors[index] = error
            finally:
                joint_runs.leave()

    members = [joint_runs.join() for _ in runs]
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(members)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:  # an interrupt reaches the main thread only
        joint_runs.stop(error)
        for thread in threads:
            thread.join()
        raise
    for index in sorted(errors):
        raise errors[index]
    return [found[index] for index in range(len(runs))]


class _Member(Executor):
    def __init__(self, joint_runs: JointRuns, number: int):
        self.name = joint_runs.worker.name
        self.keeps_stacks = joint_runs.worker.keeps_stacks
        self.shared = joint_runs.shared
        self._joint_runs = joint_runs
        self._number = number
        self._replies_finite = False

    @property
    def replies_finite(self) -> bool:
        """Whether all numbers of the last replies, of all runs, are finite."""
        return self._replies_finite

    def run(self, job: Job) -> list[Reply]:
        """Return the replies in the order of the job's clients."""
        return list(self.run_all([job])[0])

    def run_all(self, jobs: list[Job]) -> list[Sequence[Reply]]:
        """Train with the other runs."""
        return self.train_and_prepare(jobs, lambda replies: None)

    def train_and_prepare(self, jobs: list[Job], prepare: Prepare) -> list[Sequence[Reply]]:
        """Train with the other runs, and prepare the next round before a GPU is waited for."""
        trained = self._joint_runs.train_and_prepare(self._number, jobs, prepare)
        self.preparing, self.compiled = self._joint_runs.worker.preparing, self._joint_runs.worker.compiled
        self._replies_finite = trained.finite
        return trained.replies

    def compute_together(self, function: Callable[[list[T]], list[R]], item: T, round: int) -> R:
        """Wait for the other runs, then compute with them."""
        return self._joint_runs.compute(self._number, (round, _AFTER), function, item)
