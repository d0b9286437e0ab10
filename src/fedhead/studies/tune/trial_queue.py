"""The trials of a search: begun by the study, trained by an engine, and told to the study as they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch

from fedhead.core.system.errors import FedheadError
from fedhead.executors import select
from fedhead.runs.failures import describe_error
from fedhead.runs.run import Compute
from fedhead.runs.time_budget import TimeBudget
from fedhead.studies.tune.study import Study
from fedhead.studies.tune.trial_training import TrialTraining
from fedhead.studies.tune.trials import TrialRecord

Batch = Sequence[Any]  # Optuna's trials that train side by side
MAX_FAILED = 10  # a search ends when so many trials have failed and none has a result


class TrialQueue:
    """The trials that are left of a study, as far as the time allows.

    Args:
        study: The study.
        most: How many trials it is to have in all.
        budget: The time that there is.
        on_trial: Called with each trial that has ended.
    """

    def __init__(self, study: Study, most: int, budget: TimeBudget, on_trial: Callable[[TrialRecord], None]):
        self.study, self.budget = study, budget
        self._most = most
        self._on_trial = on_trial
        self._failed = 0

    @property
    def gives_up(self) -> bool:
        """Whether no more trials are begun, since many have failed here and the study has no result."""
        return self._failed >= MAX_FAILED and self.study.best is None

    def next(self, width: int) -> Batch:
        """Begin up to so many trials; none where the study has enough, the time is up, or all have failed."""
        return [] if self.budget.exhausted or self.gives_up else self.study.ask(width, self._most)

    def ended(self, batch: Batch) -> None:
        """Write what has been found, and tell of each trial."""
        self.study.write()
        records = {one.number: one for one in self.study.trials()}
        for trial in batch:
            self._failed += records[trial.number].state == "failed"
            self._on_trial(records[trial.number])

    def failed(self, batch: Batch, error: BaseException | str) -> None:
        """Record that trials have failed, on a best-effort basis: what made them fail is raised in any case."""
        reason = error if isinstance(error, str) else describe_error(error)
        with suppress(FedheadError, OSError):
            self.study.fail(batch, reason)
            self.study.write()


class TrialEngine(Protocol):
    """What trains the trials of a search."""

    def device(self, settings: Compute) -> torch.device:
        """Return where trials will train; refuse a device that is not there."""
        ...

    def run(self, search: TrialTraining, queue: TrialQueue, concurrent: int | None) -> None:
        """Train trials until the queue has none, so many side by side; None: as many as is best."""
        ...


class LocalTrials:
    """Trains trials in this process."""

    def device(self, settings: Compute) -> torch.device:
        """Return where trials will train."""
        return select.device(settings.device)

    def run(self, search: TrialTraining, queue: TrialQueue, concurrent: int | None) -> None:
        """Train trials until the queue has none."""
        width = concurrent or search.width()
        while batch := queue.next(width):
            self._train(search, queue, batch)
            queue.ended(batch)

    @staticmethod
    def _train(search: TrialTraining, queue: TrialQueue, batch: Batch) -> None:
        study = queue.study
        try:
            search.run(
                [study.values(trial) for trial in batch],
                lambda place, number, value: study.report(batch[place], number, value),
                lambda place, outcome: study.tell(batch[place], outcome),
            )
        except Exception as error:  # what ends the search
            queue.failed(batch, error)
            raise
