"""Trials on Ray workers: one process holds the study and tells workers which trials are pruned.

The machines need no shared disk. When a worker is lost, its trial is retried on another one.
"""

from __future__ import annotations

import importlib
import queue as queues
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from fedhead.studies.tune.trial_training import TrialTraining
from fedhead.studies.tune.trials import Outcome

Sent = tuple[int, float] | Outcome  # a round and its value, or the outcome


class PrunedTrials:
    """Ray actor with the numbers of pruned trials, written by one process and read by workers."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def add(self, number: int) -> None:
        """Mark a trial as pruned after its current round."""
        self._numbers.add(number)

    def has(self, number: int) -> bool:
        """Return whether a trial is pruned."""
        return number in self._numbers


def train_trial(search: TrialTraining, number: int, values: Mapping[str, Any], pruned: Any) -> Iterator[Sent]:
    """Train a trial on a worker and yield its value after each round.

    Args:
        search: Training of trials.
        number: Number of the trial.
        values: Values of the trial, by key.
        pruned: Actor with the pruned trials.
    """
    ray = importlib.import_module("ray")
    sent: queues.SimpleQueue[Sent | BaseException] = queues.SimpleQueue()

    def report(round_: int, value: float) -> bool:
        sent.put((round_, value))
        return bool(ray.get(pruned.has.remote(number)))

    def run() -> None:
        try:
            sent.put(search.run(values, report))
        except BaseException as error:  # raised again in the task's main thread
            sent.put(error)

    threading.Thread(target=run, daemon=True).start()
    while not isinstance(item := sent.get(), Outcome):
        if isinstance(item, BaseException):
            raise item
        yield item
    yield item
