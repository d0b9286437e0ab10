"""A study: the trials of a search in an SQLite file, which several processes share and which can be resumed."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput, FedheadError, first_line, unknown
from fedhead.recipes import components
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.search_space import Dimension, with_values
from fedhead.runs import changed_code
from fedhead.studies.tune.optuna_names import optuna, pruners, samplers
from fedhead.studies.tune.trials import REASON, RETRYABLE, TRIALS, Outcome, TrialRecord, record, to_csv

FILE, BEST = "study.db", "best.yaml"
_NAME = "fedhead"
_BETWEEN_WORKERS = 7919  # between the seeds of two workers
MOST_SEED = 2**32 - 1  # of the samplers' generators
# What SQLite says of the disk, as the operating system numbers it, and what is to be done.
_DISK = {
    sqlite3.SQLITE_FULL: (errno.ENOSPC, "make room"),
    sqlite3.SQLITE_IOERR: (errno.EIO, "look for an exceeded quota, a lost network drive or a failing disk"),
}
_RETRY_OF = "retry_of"  # the number of the failed trial whose values a trial has


class Study:
    """The study in a folder, begun or joined.

    Args:
        folder: The folder.
        recipe: What is searched.
        space: The keys that are searched, and what they may be.
        objective: What is measured.
        direction: `maximize` or `minimize`.
        sampler: How values are chosen: `tpe`, `gp` or `random`.
        pruner: Which trials end early: by the `median` of others in the same round, by successive `halving`, or `none`.
        seed: Seed of the sampler.
        share: Share of the clients' training samples that is tested on.

    Raises:
        BadInput: If the folder holds a study of another recipe or space, or Optuna is not installed.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        space: Sequence[Dimension],
        *,
        objective: str,
        direction: str,
        sampler: str,
        pruner: str,
        seed: int,
        share: float,
    ):
        self.folder, self.recipe, self.space = folder, recipe, tuple(space)
        self.maximizes = direction == "maximize"
        found = optuna()
        choose, end_early = samplers(found), pruners(found)
        for kind, name, known in (("sampler", sampler, choose), ("pruner", pruner, end_early)):
            if name not in known:
                raise unknown(kind, name, known)
        about: Any = {
            "recipe": recipe.flat(),
            "space": [str(one) for one in space],
            "objective": objective,
            "direction": direction,
            "validation": share,
        }
        folder.mkdir(parents=True, exist_ok=True)
        with self._storage_errors(), self.locked():
            from sqlalchemy.pool import NullPool

            # connections are closed after each use: trials run in threads, which end before the study does
            storage = self._storage = found.storages.RDBStorage(
                f"sqlite:///{folder / FILE}",
                engine_kwargs={"connect_args": {"timeout": 120}, "poolclass": NullPool},
            )
            self._study = found.create_study(
                storage=storage, study_name=_NAME, direction=direction, load_if_exists=True
            )
            about = json.loads(json.dumps(about))
            _refuse_other(folder, self._study.user_attrs.get("about", about), about)
            self._study.set_user_attr("about", about)
            workers = folder / "workers"
            workers.mkdir(exist_ok=True)
            earlier = list(workers.iterdir())
            joined = len(earlier)  # each worker draws other values
            if not any(map(_is_held, earlier)):
                self._retry_failed()
            self._worker = uuid.uuid4().hex
            self._alive = (workers / self._worker).open("w")
            _lock(self._alive)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Optuna calls some samplers and options experimental
                self._study.sampler = choose[sampler]((seed + _BETWEEN_WORKERS * joined) % (MOST_SEED + 1))
                self._study.pruner = end_early[pruner]()

    def check_code(self, code: Sequence[Mapping[str, str]], most: int, *, final: bool, allow: bool) -> None:
        """Refuse trials of another version of the user's own code than that of the trials that there are.

        The version is recorded in the study; until a trial has ended, another one takes its place.

        Args:
            code: Where the components that are searched come from, as `components.sources` says it.
            most: How many trials the study is to have in all.
            final: Whether the best setting is to be trained.
            allow: Whether to go on all the same, with a warning.

        Raises:
            BadInput: With what has changed.
        """
        with self._storage_errors(), self.locked():
            states = [one.state for one in self.trials()]
            ended = states.count("complete") + states.count("pruned")
            before = self._study.user_attrs.get("code")
            if before is None or not ended:
                self._study.set_user_attr("code", list(code))
                return
            changed = components.differing(before, code)
        changed_code.check(self.folder, changed, ended, more=final or self._taken(states) < most, allow=allow)

    def close(self) -> None:
        """Let go of the study's files."""
        self._storage.remove_session()
        self._storage.engine.dispose()
        self._alive.close()

    # -- trials -----------------------------------------------------------------------------------
    def ask(self, count: int, most: int) -> list[Any]:
        """Begin trials; first those that a worker had begun that is no longer there.

        Args:
            count: How many.
            most: How many trials the study is to have in all.

        Returns:
            Optuna's trials; none when the study has enough.
        """
        with self._storage_errors(), self.locked(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._give_up_lost()
            taken = self._taken([one.state for one in self.trials()])
            begun = [self._study.ask() for _ in range(max(0, min(count, most - taken)))]
            for trial in begun:
                trial.set_user_attr("worker", self._worker)
                self.values(trial)
            return begun

    @staticmethod
    def _taken(states: Sequence[str]) -> int:
        return sum(state in ("complete", "pruned", "running", "failed") for state in states)

    def values(self, trial: Any) -> dict[str, Any]:
        """Return what the sampler has chosen for a trial, by key."""
        chosen: dict[str, Any] = {}
        for one in self.space:
            if one.kind == "choice":
                texts = [json.dumps(value) for value in one.values]
                chosen[one.key] = json.loads(trial.suggest_categorical(one.key, texts))
            elif one.kind == "int":
                chosen[one.key] = trial.suggest_int(one.key, *one.values)
            else:
                chosen[one.key] = trial.suggest_float(one.key, *map(float, one.values), log=one.kind == "log")
        return chosen

    def tell(self, trial: Any, outcome: Outcome) -> None:
        """Record the end of a trial.

        Args:
            trial: The trial.
            outcome: How it ended.
        """
        states = optuna().trial.TrialState
        with self._storage_errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if outcome.state == "complete":
                self._study.tell(trial, outcome.value)
                return
            trial.set_user_attr(REASON, outcome.reason)
            trial.set_user_attr(RETRYABLE, outcome.retryable)
            self._study.tell(trial, state=states.FAIL if outcome.state == "failed" else states.PRUNED)

    def report(self, trial: Any, round_: int, value: float) -> bool:
        """Record what a trial has reached in a round, and return whether it is to end there."""
        with self._storage_errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a trial that is trained again reports its rounds again
            trial.report(value, round_)
            return bool(trial.should_prune())

    def fail(self, trials: Sequence[Any], reason: str) -> None:
        """Record that what has not ended of some trials failed, by an error."""
        with self._storage_errors():
            running = {one.number for one in self.trials() if one.state == "running"}
        for trial in trials:
            if trial.number in running:
                self.tell(trial, Outcome("failed", reason=reason, retryable=True))

    def _give_up_lost(self) -> None:
        """End the trials of workers that were killed, and let their values be tried again."""
        states = optuna().trial.TrialState
        for trial in self._study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            worker = self.folder / "workers" / str(trial.user_attrs.get("worker", ""))
            if trial.user_attrs.get("worker") == self._worker or _is_held(worker):
                continue
            self._study.tell(trial.number, state=states.FAIL)
            if len(trial.params) == len(self.space):
                self._study.enqueue_trial(trial.params, {_RETRY_OF: trial.number})

    def _retry_failed(self) -> None:
        """Let the values of trials that failed by an error be tried again: it may be fixed by now."""
        for trial, held in zip(self.trials(), self._study.get_trials(deepcopy=False), strict=True):
            if trial.state == "failed" and trial.retryable:
                self._study.enqueue_trial(held.params, {_RETRY_OF: trial.number})

    @property
    def others_work(self) -> bool:
        """Whether another worker has begun trials that have not ended."""
        running = self._study.get_trials(deepcopy=False, states=(optuna().trial.TrialState.RUNNING,))
        return any(trial.user_attrs.get("worker") != self._worker for trial in running)

    # -- results ----------------------------------------------------------------------------------
    def trials(self) -> list[TrialRecord]:
        """Return all trials, in order."""
        found = self._study.get_trials(deepcopy=False)
        replaced = {one.user_attrs.get(_RETRY_OF) for one in found}
        failed = optuna().trial.TrialState.FAIL
        # one that failed without a reason was lost with its process
        retried = [one.state == failed and (one.number in replaced or REASON not in one.user_attrs) for one in found]
        return [record(trial, self.space, again) for trial, again in zip(found, retried, strict=True)]

    @property
    def best(self) -> TrialRecord | None:
        """The best of the complete trials, the first of several; None while there is none."""
        done = [one for one in self.trials() if one.state == "complete" and one.value is not None]
        sign = 1 if self.maximizes else -1
        return max(done, key=lambda one: (sign * (one.value or 0.0), -one.number), default=None)

    def write(self) -> None:
        """Write the table of the trials, and the best setting as a recipe."""
        with self._storage_errors(), self.locked():
            with atomic(self.folder / TRIALS) as draft:
                draft.write_text(to_csv(self.trials(), self.space), encoding="utf-8")
            if (best := self.best) is not None:
                chosen = with_values(self.recipe, dict(best.values))
                text = chosen.to_yaml(components.folders_from(self.folder, [chosen]))
                with atomic(self.folder / BEST) as draft:
                    draft.write_text(text, encoding="utf-8")

    # -- files ------------------------------------------------------------------------------------
    @contextmanager
    def locked(self, what: str = "") -> Iterator[None]:
        """Let one worker at a time begin trials and write files, or do what is named."""
        with (self.folder / f".lock{what}").open("w") as file:
            _lock(file, wait=True)
            yield

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Say in one line what is wrong with the study's file."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, optuna().exceptions.StorageInternalError) as error:
            cause: BaseException = error
            while cause.__cause__ is not None and not isinstance(cause, sqlite3.Error):
                cause = cause.__cause__
            kind = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the other bits tell what was attempted
            if kind in _DISK:
                number, remedy = _DISK[kind]
                text = f"{os.strerror(number)} ({getattr(cause, 'sqlite_errorname', cause)})"
                fault = OSError(number, text, str(self.folder / FILE))
                raise FedheadError(f"{fault}: {remedy}, then tune again, which goes on with the study") from fault
            raise BadInput(f"{self.folder / FILE} can't be used as a study ({first_line(cause)})") from error


def objective_of(folder: Path) -> tuple[str, str] | None:
    """Return what a folder's study measures, and its direction; None if there is only its table."""
    if not (folder / FILE).is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{(folder / FILE).resolve().as_uri()}?mode=ro", uri=True)) as file:
            found = file.execute("SELECT value_json FROM study_user_attributes WHERE key = 'about'").fetchone()
    except sqlite3.Error as error:
        raise BadInput(f"{folder / FILE} can't be used as a study ({error})") from error
    about = json.loads(found[0]) if found else None
    return (about["objective"], about["direction"]) if about else None


def _refuse_other(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in now:
        if before.get(name) == now[name]:
            continue
        if name == "recipe":
            keys = [key for key in now[name] if before[name].get(key) != now[name][key]]
            keys += [key for key in before[name] if key not in now[name]]
            what = f"recipe, which differs in {keys[0]}"
        else:
            what = f"{name}: {before.get(name)}, not {now[name]}"
        raise BadInput(f"{folder} holds a study of another {what}; give the same command to join it, or another --out")


def _lock(file: Any, wait: bool = False) -> None:
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _is_held(path: Path) -> bool:
    """Return whether the worker whose file this is still runs."""
    if not path.is_file():
        return False
    with path.open("r+") as file:
        try:
            _lock(file)
        except BlockingIOError:
            return True
    return False
