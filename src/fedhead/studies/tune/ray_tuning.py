"""Tuning over a Ray cluster: this process alone has the study, and workers train the settings that it asks for.

A worker sends what its trials reach in each round and learns from this process which of them end early, so that the
machines need no common disk. When a worker is lost, its trials are trained again elsewhere.
"""

from __future__ import annotations

import importlib
import os
import queue as queues
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedhead.core.system.log import logger
from fedhead.studies.sweep.ray_cluster import RayCluster, found_from_here
from fedhead.studies.tune.trial_queue import Batch, TrialQueue
from fedhead.studies.tune.trial_training import CONCURRENT, TrialTraining
from fedhead.studies.tune.trials import Outcome

# ("round", the trial's number, (round, value)) or ("end", its number, how it ended)
Sent = tuple[Literal["round"], int, tuple[int, float]] | tuple[Literal["end"], int, Outcome]


class PrunedTrials:
    """The numbers of the trials that are to end early: an actor that this process writes and workers read."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def add(self, number: int) -> None:
        """Let a trial end after its round."""
        self._numbers.add(number)

    def has(self, number: int) -> bool:
        """Return whether a trial is to end."""
        return number in self._numbers


def train_trials(search: TrialTraining, chosen: Mapping[int, Mapping[str, Any]], pruned: Any) -> Iterator[Sent]:
    """Train trials on a worker, and yield what they reach while they do.

    Args:
        search: How trials are trained.
        chosen: The values of each trial, by its number.
        pruned: The actor that knows which trials are to end.
    """
    ray, numbers = importlib.import_module("ray"), list(chosen)
    sent: queues.SimpleQueue[Sent | BaseException | None] = queues.SimpleQueue()

    def report(place: int, number: int, value: float) -> bool:
        sent.put(("round", numbers[place], (number, value)))
        return bool(ray.get(pruned.has.remote(numbers[place])))

    def run() -> None:
        try:
            search.run(
                list(chosen.values()),
                report,
                lambda place, outcome: sent.put(("end", numbers[place], outcome)),
            )
            sent.put(None)
        except BaseException as error:  # raised below, in the task's own thread
            sent.put(error)

    threading.Thread(target=run, daemon=True).start()
    while (item := sent.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        yield item


@dataclass
class _TrialTask:
    """Trials that a worker has."""

    search: TrialTraining
    queue: TrialQueue
    batch: Batch
    pruned: Any
    left: dict[int, Any] = field(init=False)  # trials that have not ended

    def __post_init__(self) -> None:
        self.left = {trial.number: trial for trial in self.batch}

    def arguments(self) -> tuple[Any, ...]:
        """Return the trials that are left, with their values."""
        values = self.queue.study.values
        return self.search, {number: values(trial) for number, trial in self.left.items()}, self.pruned

    def received(self, item: Sent) -> None:
        """Tell the study, and the worker if a trial is to end."""
        study, number = self.queue.study, item[1]
        if item[0] == "end":
            study.tell(self.left.pop(number), item[2])
        elif study.report(self.left[number], *item[2]):
            self.pruned.add.remote(number)

    def ended(self) -> None:
        """Write the study's files."""
        self.queue.ended(self.batch)

    def failed(self, error: BaseException | str) -> None:
        """End the search, as on one machine; trials that have lost too many workers only fail themselves."""
        if isinstance(error, BaseException):
            raise error
        self.queue.failed(list(self.left.values()), error)
        self.ended()

    def lost(self, error: BaseException) -> None:
        """Say so."""
        logger.warning("a worker was lost (%s): its %d trials are trained again", type(error).__name__, len(self.left))


class RayTrials(RayCluster):
    """Trains the trials of a search as tasks of a Ray cluster.

    Args:
        cpus: CPUs that trials which train side by side get.
        gpus: GPUs that they get; 0.5 lets two share one.

    Raises:
        BadInput: Ray is not installed.
    """

    def __init__(self, cpus: float = 1, gpus: float = 0):
        super().__init__(cpus, gpus, "worker")

    def run(self, search: TrialTraining, queue: TrialQueue, concurrent: int | None) -> None:
        """Train trials until the queue has none, on as many workers as the cluster has room for."""
        settings = replace(search.settings, data=search.settings.data or os.environ.get("FEDHEAD_DATA"))
        on_gpu = self.device(settings).type == "cuda"
        width = concurrent or (CONCURRENT if on_gpu else search.width())
        there = replace(search, recipe=found_from_here(search.recipe), settings=settings, data={}, models={})
        with self.connected():
            pruned = self.ray.remote(PrunedTrials).options(num_cpus=0).remote()
            begun: list[_TrialTask] = []

            def begin() -> _TrialTask | None:
                if not (batch := queue.next(width)):
                    return None
                begun.append(_TrialTask(there, queue, batch, pruned))
                return begun[-1]

            try:
                self.run_tasks(train_trials, begin)
            except Exception as error:  # what ends the search
                queue.failed([trial for task in begun for trial in task.left.values()], error)
                raise
