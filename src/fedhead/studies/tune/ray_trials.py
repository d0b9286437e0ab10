"""Trials on Ray workers: one process has the study, and workers learn from it which trials end early.

The machines need no common disk. When a worker is lost, its trial is trained again elsewhere.
"""

from __future__ import annotations

import importlib
import queue as queues
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from fedhead.studies.tune.trial_training import TrialTraining
from fedhead.studies.tune.trials import Outcome

Sent = tuple[int, float] | Outcome  # a round and its value, or the end


class PrunedTrials:
    """The numbers of the trials that are to end early: an actor that one process writes and workers read."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def add(self, number: int) -> None:
        """Let a trial end after its round."""
        self._numbers.add(number)

    def has(self, number: int) -> bool:
        """Return whether a trial is to end."""
        return number in self._numbers


def train_trial(search: TrialTraining, number: int, values: Mapping[str, Any], pruned: Any) -> Iterator[Sent]:
    """Train a trial on a worker, and yield what it reaches meanwhile.

    Args:
        search: How trials are trained.
        number: The trial's.
        values: The trial's, by key.
        pruned: The actor that knows which trials are to end.
    """
    ray = importlib.import_module("ray")
    sent: queues.SimpleQueue[Sent | BaseException] = queues.SimpleQueue()

    def report(round_: int, value: float) -> bool:
        sent.put((round_, value))
        return bool(ray.get(pruned.has.remote(number)))

    def run() -> None:
        try:
            sent.put(search.run(values, report))
        except BaseException as error:  # raised below, in the task's own thread
            sent.put(error)

    threading.Thread(target=run, daemon=True).start()
    while not isinstance(item := sent.get(), Outcome):
        if isinstance(item, BaseException):
            raise item
        yield item
    yield item
