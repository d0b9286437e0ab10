"""Run folders: recipe, metrics and state of a run, for reading, resuming and repeating it.

    config.yaml             the recipe with all keys, and the folders of its files
    partition.npz           training and test indices of each client
    metrics.jsonl           one line of metrics per round, flushed at once
    checkpoint.safetensors  the state after a round, replaced atomically
    environment.json        schema version, versions, device, commit, sources of the components, the selected executor,
                            input shapes, Python objects, and later extensions
    initial.safetensors     the initial weights of models that were given in Python as modules
    stages.safetensors      the server's state after each stage
    diverged.json           the reason of a diverged run, whose numbers became non-finite
    result.json             the final results of a finished run
    ledger.jsonl            of a deployed run: one line per request to a site

A run that is killed at any moment resumes from its checkpoint. The metrics of later rounds are removed; repeating these
rounds gives the same numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput, Diverged
from fedhead.core.system.special_files import read_text
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.treefile import load_tree, save_tree
from fedhead.data.federation.federation import Federation
from fedhead.engine.rounds.evaluated_rounds import is_evaluated, without_evaluation
from fedhead.recipes import components, resume_rules
from fedhead.recipes.differences import describe
from fedhead.recipes.recipe import KEYS, Recipe
from fedhead.runs.checkpoint import Checkpoint, owner_of
from fedhead.runs.folder_lock import LOCK, lock_folder, unwritable
from fedhead.runs.partition_file import StoredSplit, read_split, save_split
from fedhead.runs.run_folder_schema import (
    CHECKPOINT,
    CONFIG,
    DIVERGED,
    ENVIRONMENT,
    FILES,
    INITIAL,
    METRICS,
    PARTITION,
    RESULT,
    SCHEMA,
    STAGE_STATES,
    OtherRecipe,
    damaged,
    damaged_if_bad,
    finite,
    read_environment,
    read_object,
    read_rows,
)


class RunFolder:
    """Folder of one run."""

    def __init__(self, path: Path, recipe: Recipe, executor: str | None = None):
        self.path = path
        self.recipe = recipe
        self.executor = executor  # name of the user's executor; its folder is stored too
        self._metrics: IO[str] | None = None
        self.checkpoint = Checkpoint(path / CHECKPOINT, lambda: self._owner, before=self._sync_metrics)

    # -- making and opening -----------------------------------------------------------------------
    @staticmethod
    def refuse_taken(path: str | Path) -> None:
        """Check that a folder is free for a new run."""
        contents, another = _contents(Path(path)), "select another folder with --out, or with out in server.yaml"
        if CONFIG in contents:
            if RESULT in contents:
                state = "a finished run"
                fix = f"add rounds or stages to it with --resume (resume=True in Python), or {another}"
            elif DIVERGED in contents:
                state, fix = "a run that diverged", another
            else:
                state = "an unfinished run"
                fix = f"continue it with --resume (resume=True in Python), or {another}"
            raise BadInput(f"{path} holds {state} already: {fix}")
        if contents:
            raise BadInput(f"{path} is not empty and holds no run (it has {contents[0]}): {another}")

    @staticmethod
    def holds_run(path: str | Path) -> bool:
        """Return whether a folder holds a run, finished or not; False if the run was killed before it wrote a file.

        Raises:
            BadInput: If the path is no folder, or can't be read.
        """
        return bool(_contents(Path(path)))

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe, executor: str | None = None) -> RunFolder:
        """Create a run folder; raise an error if it is not empty."""
        cls.refuse_taken(path)
        folder = cls(Path(path), recipe, executor)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            with lock_folder(folder.path):
                cls.refuse_taken(path)  # another process may have created the run first
                folder.write_new({})
        except OSError as error:
            raise unwritable(folder.path, error) from error
        return folder

    def write_new(self, environment: Mapping[str, Any]) -> None:
        """Write the environment and then the recipe of a new run; a folder without a recipe holds no run."""
        self._write_environment(environment)
        self._write_recipe()

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open an existing run folder."""
        path = Path(path)
        names = _contents(path)
        if CONFIG not in names:
            reason = f"{path} is no run folder: it has no {CONFIG}; give one, such as runs/NAME"
            raise damaged(reason) if set(names) & set(FILES) else BadInput(reason)
        read_environment(path)  # raises an error for another schema
        with damaged_if_bad():
            text = read_text(path / CONFIG)
            if f"\n{KEYS[-1]}:" not in text:  # the last key is missing: the file is truncated
                raise damaged(f"{path / CONFIG} was cut: it lacks the key {KEYS[-1]!r}")
            return cls(path, Recipe.from_yaml(text, str(path / CONFIG), [path.resolve()]))

    def check_continued_by(self, recipe: Recipe, fix: str = "resume with the same one") -> None:
        """Raise `OtherRecipe` if the run can't be resumed with a recipe (`resume_rules`)."""
        if others := resume_rules.differences(self.recipe, recipe):
            raise OtherRecipe(
                f"{self.path} was begun with another recipe: {describe(others)}; {fix}, or select another folder"
            )

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Lock the folder for writing; the lock of a killed process is released."""
        with lock_folder(self.path):
            # Drafts of a killed process; safetensors writes a checkpoint through a .tmpXXXXXX file.
            for name in (*FILES, "tmp"):
                for draft in self.path.glob(f".{name}*"):
                    draft.unlink()
            (self.path / DIVERGED).unlink(missing_ok=True)  # the run is retried
            try:
                yield self
            except Diverged as error:
                self._write(DIVERGED, json.dumps({"reason": str(error)}) + "\n")
                raise
            finally:
                self.checkpoint.close()
                if self._metrics is not None:
                    self._metrics.close()
                    self._metrics = None

    @property
    def finished(self) -> bool:
        """True if the run is finished."""
        return (self.path / RESULT).exists()

    @property
    def diverged(self) -> str | None:
        """Reason of a diverged run, whose numbers became non-finite."""
        content = read_object(self.path / DIVERGED, "delete it")
        return None if content is None or self.finished else str(content.get("reason"))

    # -- split and environment --------------------------------------------------------------------
    def split(self) -> StoredSplit | None:
        """Return the stored split; None if the run has not split its data yet."""
        return read_split(self.path / PARTITION)

    def save_split(self, federation: Federation) -> None:
        """Store the split of the data, or check that the data matches the stored split."""
        save_split(self.path / PARTITION, federation)

    def save_environment(self, facts: Mapping[str, Any]) -> None:
        """Update the stored environment."""
        self._write_environment({**self.environment(), **facts})

    def forget_executor(self) -> None:
        """Remove the stored executor, so that it is selected again, unless the run has a checkpoint."""
        if not self.checkpoint.exists:
            chosen = ("executor", "compiled_from")
            self._write_environment({name: fact for name, fact in self.environment().items() if name not in chosen})

    def environment(self) -> dict[str, Any]:
        """Return the stored environment; empty if not stored yet."""
        return read_environment(self.path)

    # -- rounds -----------------------------------------------------------------------------------
    def record(self, row: Mapping[str, Any]) -> None:
        """Append the metrics of a round."""
        if self._metrics is None:
            self._metrics = (self.path / METRICS).open("a", encoding="utf-8")
        self._metrics.write(json.dumps(finite(row)) + "\n")
        self._metrics.flush()

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of all rounds so far, without a truncated last line."""
        return read_rows(self.path / METRICS)

    @cached_property
    def _owner(self) -> dict[str, Any]:
        """Identity of the run in its checkpoints, unaffected by extensions."""
        return owner_of(self.recipe, self.environment().get("objects", {}))

    def _sync_metrics(self) -> None:
        """Flush the metrics to disk before a checkpoint is written."""
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())

    def rewind(self) -> tuple[int, Tree, list[dict[str, Any]]] | None:
        """Return the checkpoint's round, state and metrics; None without a checkpoint.

        Metrics of later rounds are removed from the file, since these rounds are repeated.
        """
        if not self.checkpoint.exists:
            self._write(METRICS, "")
            return None
        state, facts = self.checkpoint.load()
        last = facts["round"]
        rows = self.metrics()[:last]
        if len(rows) < last:
            raise damaged(
                f"{self.path / METRICS} ends before round {last}, where {CHECKPOINT} stands: it was cut or edited"
            )
        self._write(METRICS, "".join(json.dumps(row) + "\n" for row in rows))
        return last, state, rows

    def extend(self, recipe: Recipe) -> None:
        """Extend the run by rounds or stages, and record the extension.

        The last rounds so far become ordinary ones: only evaluations that the longer run would have are kept.

        Args:
            recipe: Recipe with more rounds or stages.
        """
        old = self.recipe
        entry = {"rounds": [old.rounds, recipe.rounds], "stages": [list(old.stages), list(recipe.stages)]}
        earlier = self.environment().get("extended", [])
        if earlier[-1:] != [entry]:  # else a process was killed after this write
            self.save_environment({"extended": [*earlier, entry]})
        (self.path / RESULT).unlink(missing_ok=True)
        if recipe.rounds > old.rounds:
            when = (recipe.rounds, old.evaluate_every, old.last_rounds)
            rows = [r if is_evaluated(r["round"], *when) else without_evaluation(r) for r in self.metrics()]
            self._write(METRICS, "".join(json.dumps(row) + "\n" for row in rows))
        self.recipe = recipe
        self._write_recipe()

    def save_stages(self, servers: Mapping[str, Tree]) -> None:
        """Store the server state after each stage, by stage name."""
        save_tree(self.path / STAGE_STATES, Tree(servers))

    def stage_states(self) -> Tree:
        """Return the server state after each stage, by stage name; empty without stages."""
        path = self.path / STAGE_STATES
        with damaged_if_bad():
            return load_tree(path)[0] if path.exists() else Tree()

    def save_initial_weights(self, models: Sequence[Weights]) -> None:
        """Store the initial weights of models, once."""
        if not (self.path / INITIAL).exists():
            save_tree(self.path / INITIAL, Tree({str(number): w for number, w in enumerate(models)}))

    def initial_weights(self) -> list[Weights] | None:
        """Return the initial weights of the models; None if the recipe determines them."""
        if not (self.path / INITIAL).exists():
            return None
        with damaged_if_bad():
            stored = load_tree(self.path / INITIAL)[0]
        return [stored[str(number)] for number in range(len(stored))]

    def finish(self, result: Mapping[str, Any]) -> None:
        """Store the final results, which marks the run as finished."""
        self._write(RESULT, json.dumps(finite(result), indent=2) + "\n")

    def result(self) -> dict[str, Any] | None:
        """Return the final results; None for an unfinished run.

        Raises:
            DamagedRun: If the file can't be read, or lacks an accuracy or the record of a stage, which would count as a
                finished run without values.
        """
        fix = "delete it: the run then goes on from its checkpoint and writes it again"
        result = read_object(self.path / RESULT, fix)
        if result is None:
            return None
        stages = result.get("stages")
        records = [result, *stages.values()] if isinstance(stages, dict) else []
        if len(records) <= len(self.recipe.stages) or not all(map(_has_accuracy, records)):
            raise damaged(f"{self.path / RESULT} lacks an accuracy or the record of a stage: it was edited", fix)
        return result

    # -- files ------------------------------------------------------------------------------------
    def _write_environment(self, facts: Mapping[str, Any]) -> None:
        self._write(ENVIRONMENT, json.dumps({"schema": SCHEMA, **facts}, indent=2) + "\n")

    def _write_recipe(self) -> None:
        """Write the recipe with the folders of its files: relative (for moved projects) and absolute."""
        relative = components.folders_from(self.path, [self.recipe], [self.executor] if self.executor else [])
        absolute = [str((self.path / folder).resolve()) for folder in relative]
        self._write(CONFIG, self.recipe.to_yaml([*relative, *absolute]))

    def _write(self, name: str, text: str) -> None:
        with atomic(self.path / name) as draft:
            draft.write_text(text, encoding="utf-8")


def _has_accuracy(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("accuracy", ...), int | float | None)


def _contents(path: Path) -> list[str]:
    """List the files of a folder, without leftovers of a process that was killed before writing the recipe."""
    try:
        names = sorted(p.name for p in path.iterdir())
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise BadInput(f"{path} is a file, not a folder: give another one") from None
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror}") from error
    if CONFIG in names:
        return names
    drafts = (f".{CONFIG}.", f".{ENVIRONMENT}.")
    return [name for name in names if name not in (ENVIRONMENT, LOCK) and not name.startswith(drafts)]
