"""Study: resumable trials of a search in an SQLite file that several processes may share."""

from __future__ import annotations

import datetime
import errno
import json
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput, FedheadError, first_line, require_known
from fedhead.core.system.failures import describe_error
from fedhead.recipes import components
from fedhead.recipes.differences import describe, differences
from fedhead.recipes.search_space import with_values
from fedhead.runs import recorded_code
from fedhead.runs.run_folder_schema import read_object
from fedhead.studies.time_budget import TimeBudget
from fedhead.studies.tune.trial_training import TrialTraining
from fedhead.studies.tune.trials import REASON, RETRYABLE, TRIALS, Outcome, TrialRecord, record, to_csv

FILE, ABOUT, BEST = "study.db", "study.json", "best.yaml"
_NAME = "fedhead"
_BETWEEN_WORKERS = 7919  # offset between the seeds of two workers
MOST_SEED = 2**32 - 1  # largest seed of the samplers' generators
MAX_FAILED = 10  # failed trials that end a search without a result
HEARTBEAT_S, LOST_AFTER_S = 5, 30  # interval; timeout after which a trial counts as lost
_DISK = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO}  # SQLite's code -> errno


def optuna() -> Any:
    """Import Optuna.

    Raises:
        BadInput: It is not installed.
    """
    try:
        import optuna as package
    except ImportError as error:
        raise BadInput(f"tuning needs Optuna ({error}): pip install 'fedhead[tune]'") from error
    package.logging.set_verbosity(package.logging.WARNING)
    return package


def load_study(folder: Path) -> Any:
    """Return the Optuna study of a folder.

    Raises:
        BadInput: There is none.
    """
    if not (folder / FILE).is_file():
        raise BadInput(f"{folder / FILE} is not there: give the folder of a study, as fedhead tune wrote it")
    return optuna().load_study(study_name=_NAME, storage=f"sqlite:///{folder / FILE}")


_SAMPLERS: Mapping[str, Callable[[Any, int], Any]] = {
    "tpe": lambda samplers, seed: samplers.TPESampler(seed=seed, multivariate=True),
    "gp": lambda samplers, seed: samplers.GPSampler(seed=seed),
    "random": lambda samplers, seed: samplers.RandomSampler(seed=seed),
}
_PRUNERS: Mapping[str, Callable[[Any], Any]] = {
    "median": lambda pruners: pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
    "halving": lambda pruners: pruners.SuccessiveHalvingPruner(),
    "none": lambda pruners: pruners.NopPruner(),
}


class Study:
    """Queue of trials: a new or existing study in a folder.

    Optuna's storage holds the trials. A trial whose process was killed is detected by its missing heartbeat and
    retried with the same values.

    Args:
        folder: Folder of the study.
        search: Training of trials.
        trials: Total number of trials of the study.
        budget: Time budget.
        on_trial: Called with each trial that has ended in this process.
        sampler: Name of the sampler: `tpe`, `gp` or `random`.
        pruner: Pruning rule: `median` of other trials in the same round, successive `halving`, or `none`.
        seed: Seed of the sampler.

    Raises:
        BadInput: If the folder holds a study of another recipe or space, or Optuna is not installed.
    """

    def __init__(
        self,
        folder: Path,
        search: TrialTraining,
        *,
        trials: int,
        budget: TimeBudget,
        on_trial: Callable[[TrialRecord], None] = lambda trial: None,
        sampler: str = "tpe",
        pruner: str = "median",
        seed: int = 0,
    ):
        self.folder, self.search = folder, search
        self._most, self._budget, self._on_trial = trials, budget, on_trial
        self._failed = 0
        self._running: dict[int, Any] = {}  # Optuna trials of this process, by number
        require_known("sampler", sampler, _SAMPLERS)
        require_known("pruner", pruner, _PRUNERS)
        storages = optuna().storages
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna calls some options experimental
            self._retry = storages.RetryHeartbeatStaleTrialCallback()
        folder.mkdir(parents=True, exist_ok=True)
        with self._storage(), self.locked():
            from sqlalchemy.pool import NullPool

            self._write_about()
            self.storage = storages.RDBStorage(
                f"sqlite:///{folder / FILE}",
                # Close connections after each use: the heartbeat thread ends before the study.
                engine_kwargs={"connect_args": {"timeout": 120}, "poolclass": NullPool},
                heartbeat_interval=HEARTBEAT_S,
                grace_period=LOST_AFTER_S,
                heartbeat_stale_trial_callback=self._retry,
            )
            self._study = optuna().create_study(
                storage=self.storage,
                study_name=_NAME,
                direction=search.direction,
                load_if_exists=True,
                pruner=_PRUNERS[pruner](optuna().pruners),
            )
            workers = self._study.user_attrs.get("workers", 0)  # each worker has its own seed
            self._study.set_user_attr("workers", int(workers) + 1)
            own_seed = (seed + _BETWEEN_WORKERS * workers) % (MOST_SEED + 1)
            self._study.sampler = _SAMPLERS[sampler](optuna().samplers, own_seed)
            self._fail_lost()
            if not self.is_running:  # no other process is working, whose failures would be retried too early
                for trial, stored in zip(self.trials(), self._study.get_trials(deepcopy=False), strict=True):
                    if trial.state == "failed" and trial.retryable:  # the error may be fixed by now
                        self._retry(self._study, stored)
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def _write_about(self) -> None:
        """Write the search space, or check that the folder holds the same study."""
        about: dict[str, Any] = {
            "recipe": self.search.recipe.flat(),
            "space": [str(dimension) for dimension in self.search.space],
            "objective": self.search.objective,
            "direction": self.search.direction,
            "validation": self.search.share,
        }
        about = json.loads(json.dumps(about))
        before = read_about(self.folder)
        if before is not None:
            changed = differences(before["recipe"], about["recipe"]) or differences(before, about)
            if changed:
                raise BadInput(
                    f"{self.folder} holds another study: {describe(changed)}; give the same command to join it, or "
                    "another --out"
                )
            return
        if others := sorted(path.name for path in self.folder.iterdir() if not path.name.startswith(".lock")):
            raise BadInput(f"{self.folder} is not empty and holds no study (it has {others[0]}): give another --out")
        with atomic(self.folder / ABOUT) as draft:
            draft.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")

    def check_code(self, *, final: bool, allow: bool) -> None:
        """Check that the user's code has not changed since the existing trials.

        The version of the code is recorded in the study, and may change until the first trial has ended.

        Args:
            final: Whether the best recipe will be trained.
            allow: Whether changed code is only a warning.

        Raises:
            BadInput: With the changed files.
        """
        code = self.search.code()
        with self._storage(), self.locked():
            states = [trial.state for trial in self.trials()]
            ended = states.count("complete") + states.count("pruned")
            before = self._study.user_attrs.get("code")
            if before is None or not ended:
                self._study.set_user_attr("code", code)
                return
            changed = recorded_code.changes(before, code)
        continues = final or _taken(states) < self._most
        recorded_code.check_results(self.folder, changed, ended, "result", more=continues, allow=allow)

    def close(self) -> None:
        """Stop the heartbeat and close the study's files."""
        self._closed.set()
        self._heart.join()
        self.storage.remove_session()
        self.storage.engine.dispose()

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            for number in list(self._running):
                with suppress(Exception):  # the search fails with the same error and reports it
                    self._record_heartbeat(number)

    def _record_heartbeat(self, number: int) -> None:
        study = self.storage.get_study_id_from_name(_NAME)
        self.storage.record_heartbeat(self.storage.get_trial_id_from_study_id_trial_number(study, number))

    # -- trials -----------------------------------------------------------------------------------
    def next(self) -> TrialJob | None:
        """Start a trial; None if the study is complete, the time budget is exhausted, or all trials failed."""
        if self._budget.exhausted or (self._failed >= MAX_FAILED and self.best is None):
            return None
        with self._storage(), self.locked():
            self._fail_lost()
            if _taken([trial.state for trial in self.trials()]) >= self._most:
                return None
            trial = self._study.ask()
            self._record_heartbeat(trial.number)
            self._running[trial.number] = trial
            return TrialJob(self, trial, self._suggest(trial))

    def _suggest(self, trial: Any) -> dict[str, Any]:
        """Sample the values of a trial, by key."""
        chosen: dict[str, Any] = {}
        for dimension in self.search.space:
            key, kind, values = dimension.key, dimension.kind, dimension.values
            if kind == "choice":
                chosen[key] = json.loads(trial.suggest_categorical(key, [json.dumps(value) for value in values]))
            elif kind == "int":
                chosen[key] = trial.suggest_int(key, *values)
            else:
                chosen[key] = trial.suggest_float(key, *map(float, values), log=kind == "log")
        return chosen

    def report(self, trial: Any, round_: int, value: float) -> bool:
        """Record a trial's value after a round and return whether the trial is pruned."""
        with self._storage():
            try:
                trial.report(value, round_)
            except optuna().exceptions.UpdateFinishedTrialError:
                return True  # already marked as lost, as after a suspension, and was retried elsewhere
            return bool(trial.should_prune())

    def finish(self, job: TrialJob, result: Outcome) -> None:
        """Record the outcome of a trial and write the study's results."""
        self.tell(job.trial, result)
        self.write()
        ended = self.trials()[job.trial.number]
        self._failed += ended.state == "failed"
        self._on_trial(ended)

    def tell(self, trial: Any, outcome: Outcome) -> None:
        """Record the outcome of a trial in Optuna."""
        states = optuna().trial.TrialState
        state = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[outcome.state]
        with self._storage(), suppress(optuna().exceptions.UpdateFinishedTrialError):  # already marked as lost
            trial.set_user_attr(REASON, outcome.reason)
            trial.set_user_attr(RETRYABLE, outcome.retryable)
            self._study.tell(trial, outcome.value, state=state)
        self._running.pop(trial.number, None)

    def fail_running(self, error: BaseException) -> None:
        """Mark running trials as failed, on a best-effort basis: the caller raises the error anyway."""
        reason = describe_error(error) if isinstance(error, Exception) else "its process was stopped"
        with suppress(FedheadError, OSError):
            for trial in list(self._running.values()):
                self.tell(trial, Outcome("failed", reason=reason, retryable=True))
            self.write()

    def _fail_lost(self) -> None:
        """Mark trials of killed processes as failed, so that they are retried."""
        optuna().storages.fail_stale_trials(self._study)
        oldest = datetime.datetime.now() - datetime.timedelta(seconds=LOST_AFTER_S)
        for trial in self._running_trials():
            if not trial.params and trial.datetime_start < oldest:  # lost before its first heartbeat
                self._study.tell(trial.number, state=optuna().trial.TrialState.FAIL)
                self._retry(self._study, trial)

    def _running_trials(self) -> list[Any]:
        states = (optuna().trial.TrialState.RUNNING,)
        return list(self._study.get_trials(deepcopy=False, states=states))

    @property
    def is_running(self) -> bool:
        """True while a trial runs in this or another process."""
        return bool(self._running_trials())

    # -- results ----------------------------------------------------------------------------------
    def trials(self) -> list[TrialRecord]:
        """Return all trials, in order."""
        with self._storage():
            stored = self._study.get_trials(deepcopy=False)
            history = optuna().storages.RetryHeartbeatStaleTrialCallback.retry_history
            replaced = {number for trial in stored for number in history(trial)}
        return [record(trial, self.search.space, trial.number in replaced) for trial in stored]

    @property
    def best(self) -> TrialRecord | None:
        """Best complete trial, the first of equal ones; None before the first."""
        done = [trial for trial in self.trials() if trial.state == "complete" and trial.value is not None]
        sign = 1 if self.search.direction == "maximize" else -1
        return max(done, key=lambda trial: (sign * (trial.value or 0.0), -trial.number), default=None)

    def write(self) -> None:
        """Write the table of trials and the best recipe."""
        with self._storage(), self.locked():
            with atomic(self.folder / TRIALS) as draft:
                draft.write_text(to_csv(self.trials(), self.search.space), encoding="utf-8")
            if (best := self.best) is not None:
                chosen = with_values(self.search.recipe, dict(best.values))
                text = chosen.to_yaml(components.folders_from(self.folder, [chosen]))
                with atomic(self.folder / BEST) as draft:
                    draft.write_text(text, encoding="utf-8")

    # -- files ------------------------------------------------------------------------------------
    @contextmanager
    def locked(self, suffix: str = "") -> Iterator[None]:
        """Hold the study's lock, or another named lock of its folder."""
        with FileLock(self.folder / f".lock{suffix}"):
            yield

    @contextmanager
    def _storage(self) -> Iterator[None]:
        """Convert errors of the study's file to one line and silence Optuna's warnings."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a retried trial reports its rounds twice
                yield
        except (SQLAlchemyError, optuna().exceptions.StorageInternalError) as error:
            cause: BaseException = error
            while cause.__cause__ is not None and not isinstance(cause, sqlite3.Error):
                cause = cause.__cause__
            kind = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # primary code; the other bits are the operation
            if kind in _DISK:
                raise OSError(_DISK[kind], str(cause), str(self.folder / FILE)) from error
            raise BadInput(f"{self.folder / FILE} can't be used as a study ({first_line(cause)})") from error
        except (ValueError, LookupError, TypeError) as error:  # Optuna does not check the contents of its file
            if isinstance(error, FedheadError):
                raise
            why = first_line(error)
            raise BadInput(f"{self.folder / FILE} was changed or damaged ({why}): begin another study") from error


@dataclass
class TrialJob:
    """Job of one trial.

    Args:
        study: Study of the trial.
        trial: Optuna trial.
        values: Values of the trial, by key.
    """

    study: Study
    trial: Any
    values: Mapping[str, Any]

    def run(self) -> Outcome:
        """Train the trial and return its outcome."""
        return self.study.search.run(self.values, lambda round_, value: self.study.report(self.trial, round_, value))


def read_about(folder: Path) -> dict[str, Any] | None:
    """Return the search space of a folder's study; None if there is no study, or only its table."""
    return read_object(folder / ABOUT, "put the study's own file back, or begin another study with --out")


def _taken(states: Sequence[str]) -> int:
    return sum(state in ("complete", "pruned", "running", "failed") for state in states)
