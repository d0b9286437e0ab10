"""Run folders: the settings, metrics and state of a run, so that it can be read, resumed and repeated.

    config.yaml             the recipe, every key written out
    partition.npz           which rows each client trains and tests on
    metrics.jsonl           one line of metrics per round, flushed at once
    checkpoint.safetensors  the state after a round, replaced whole
    environment.json        versions, device, commit, where each component came from, the executor that was chosen, what
                            the samples look like, what was given in Python as an object, and later extensions
    initial.safetensors     the first weights of models that were given in Python as modules
    stages.safetensors      the server's state after each stage
    diverged.json           why the run has no result, where its numbers left the finite ones
    result.json             the final results; a run that has them is finished

A run that is killed at any moment goes on from its checkpoint: rounds that were counted after it are cut from the
metrics and run again, to the same numbers.
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
from fedhead.core.tree.treefile import load_metadata, load_tree, save_tree
from fedhead.engine.rounds.evaluated_rounds import is_evaluated, without_evaluation
from fedhead.recipes import resume_rules, search_paths
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.run_folder_schema import CONFIG as CONFIG
from fedhead.recipes.run_folder_schema import ENVIRONMENT as ENVIRONMENT
from fedhead.recipes.run_folder_schema import (
    OtherRecipe,
    check_environment,
    check_facts,
    check_record,
    damaged,
    damaged_if_bad,
    finite,
    read_object,
    read_rows,
    round_of,
)
from fedhead.runs import checkpoint_owner
from fedhead.runs.checkpoint_writer import CheckpointWriter
from fedhead.runs.folder_lock import creating, hold, in_use, was_removed
from fedhead.runs.partition_file import PartitionFile

PARTITION, METRICS = "partition.npz", "metrics.jsonl"
CHECKPOINT, RESULT = "checkpoint.safetensors", "result.json"
STAGE_STATES, DIVERGED, INITIAL = "stages.safetensors", "diverged.json", "initial.safetensors"
FILES = (CONFIG, PARTITION, METRICS, CHECKPOINT, ENVIRONMENT, RESULT, STAGE_STATES, DIVERGED, INITIAL)


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path, recipe: Recipe):
        self.path = path
        self.recipe = recipe
        self._metrics: IO[str] | None = None
        self.checkpoints = CheckpointWriter(path / CHECKPOINT, before=self._sync_metrics)

    # -- making and opening -----------------------------------------------------------------------
    @staticmethod
    def refuse_taken(path: str | Path) -> None:
        """Refuse a folder that can't hold a new run because it holds something already."""
        held = _contents(Path(path))
        if CONFIG in held:
            state = (
                "a finished run"
                if RESULT in held
                else "a run that diverged"
                if DIVERGED in held
                else "an unfinished run"
            )
            resumable = state == "an unfinished run"
            fix = (
                "continue it with --resume (resume=True in Python) or select another --out"
                if resumable
                else "add rounds or stages to it with --resume (resume=True in Python), or select another --out"
                if state == "a finished run"
                else "select another folder with --out"
            )
            raise BadInput(f"{path} holds {state} already: {fix}")
        if held:
            raise BadInput(f"{path} is not empty and holds no run (it has {held[0]}): select another folder with --out")

    @staticmethod
    def holds_run(path: str | Path) -> bool:
        """Say whether a folder holds a run, finished or not; one that was killed before its first file does not.

        Raises:
            BadInput: If the path is no folder, or can't be read.
        """
        return bool(_contents(Path(path)))

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe) -> RunFolder:
        """A new run folder; one that holds anything already is refused and left as it is."""
        cls.refuse_taken(path)
        folder = cls(Path(path), recipe)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            with creating(
                folder.path, CONFIG
            ):  # of two processes that get here at once, one finds the other's settings
                cls.refuse_taken(path)
                folder._write(CONFIG, recipe.to_yaml())
        except OSError as error:
            said = f"{path} can't be written to: {error.strerror}; select another folder with --out"
            raise BadInput(said) from error
        return folder

    @classmethod
    def open(cls, path: str | Path, recipe: Recipe | None = None, fix: str = "resume with the same one") -> RunFolder:
        """An existing run folder; with a recipe, only if that goes on with the run's own (`extension.difference`).

        Args:
            path: The folder.
            recipe: The recipe of a run that is to go on.
            fix: What to do where it can't.
        """
        path = Path(path)
        held = _contents(path)
        if CONFIG not in held:
            reason = f"{path} is no run folder: it has no {CONFIG}"
            raise damaged(reason) if set(held) & set(FILES) else BadInput(reason)
        with damaged_if_bad():
            text = read_text(path / CONFIG)
            stored = Recipe.from_yaml(text, str(path / CONFIG), [path.resolve()], search_paths.of_run(path))
        if recipe is not None and (other := resume_rules.difference(stored, recipe)) is not None:
            key, was, now = other
            raise OtherRecipe(
                f"{path} was begun with another recipe: {key} was {was!r} and is now {now!r}; {fix}, or select another "
                "folder"
            )
        return cls(path, stored)

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Hold the folder for writing: a second process that wants it is refused; a killed one lets go of it."""
        try:
            lock = (self.path / CONFIG).open("r+")
        except OSError as error:
            raise BadInput(f"{self.path} can't be written to: {error.strerror}") from error
        with lock:
            hold(lock, self.path)
            if was_removed(lock) or os.fstat(lock.fileno()).st_ino != (self.path / CONFIG).stat().st_ino:
                # it was extended meanwhile
                raise in_use(self.path)
            # A process was killed while it wrote; safetensors writes a checkpoint by a .tmpXXXXXX file beside it.
            for name in (*FILES, "tmp"):
                for draft in self.path.glob(f".{name}*"):
                    draft.unlink()
            (self.path / DIVERGED).unlink(missing_ok=True)  # it is tried again
            try:
                yield self
            except Diverged as error:
                self._write(DIVERGED, json.dumps({"reason": str(error)}) + "\n")
                raise
            finally:
                self.checkpoints.close()
                if self._metrics is not None:
                    self._metrics.close()
                    self._metrics = None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / RESULT).exists()

    @property
    def diverged(self) -> str | None:
        """Why the run has no result, if its numbers left the finite ones."""
        found = read_object(self.path / DIVERGED, "delete it")
        return None if found is None or self.finished else str(found.get("reason"))

    # -- the split and the surroundings -----------------------------------------------------------
    @property
    def partition(self) -> PartitionFile:
        """The file of the split."""
        return PartitionFile(self.path / PARTITION)

    def save_environment(self, facts: Mapping[str, Any]) -> None:
        """Store what the run ran on, on top of what is stored."""
        self._write(ENVIRONMENT, json.dumps({**self.environment(), **facts}, indent=2) + "\n")

    def forget_executor(self) -> None:
        """Let the run choose its executor again; one that has a checkpoint keeps its own."""
        if not self.checkpoint_round():
            kept = {
                name: fact for name, fact in self.environment().items() if name not in ("executor", "compiled_from")
            }
            self._write(ENVIRONMENT, json.dumps(kept, indent=2) + "\n")

    def environment(self) -> dict[str, Any]:
        """What the run ran on; nothing if that was not stored yet."""
        path = self.path / ENVIRONMENT
        return check_environment(read_object(path) or {}, str(path))

    # -- rounds -----------------------------------------------------------------------------------
    def record(self, row: Mapping[str, Any]) -> None:
        """Add a round's metrics to the metrics."""
        if self._metrics is None:
            self._metrics = (self.path / METRICS).open("a", encoding="utf-8")
        self._metrics.write(json.dumps(finite(row)) + "\n")
        self._metrics.flush()

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of all rounds so far; a line that a crash cut short is left out."""
        return read_rows(self.path / METRICS)

    def save_checkpoint(
        self, round: int, state: Tree, final: bool = False, facts: Mapping[str, Any] | None = None
    ) -> bool:
        """Store the state after a round, if the last one is long enough ago; says whether it did.

        Args:
            round: The round.
            state: The states of server and clients.
            final: Whether to store it in any case.
            facts: What else a resumed run needs, as JSON can hold it.
        """
        facts = {"round": round, checkpoint_owner.SETTINGS: self._settings, **(facts or {})}
        return self.checkpoints.save(state, facts, final)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """What a checkpoint of this run says of the run; an extension changes none of it."""
        return checkpoint_owner.settings(self.recipe, self.environment().get("objects", {}))

    def _sync_metrics(self) -> None:
        """Bring to the disk what a checkpoint counts on."""
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())

    def checkpoint_round(self) -> int:
        """The round after which the checkpoint was taken; 0 if there is none yet."""
        path = self.path / CHECKPOINT
        return round_of(self.checkpoint_facts(), path) if path.exists() else 0

    def checkpoint_facts(self) -> dict[str, Any]:
        """What the checkpoint says besides its states: its round, and what callbacks remember and keep."""
        with damaged_if_bad():
            metadata = load_metadata(self.path / CHECKPOINT)
        return self._check_facts(metadata)

    def checkpoint(self) -> tuple[Tree, dict[str, Any]]:
        """The states of the checkpoint, and what else it says.

        Raises:
            DamagedRun: If it can't be read, or is of another run.
        """
        with damaged_if_bad():
            state, metadata = load_tree(self.path / CHECKPOINT)
        return state, self._check_facts(metadata)

    def _check_facts(self, metadata: dict[str, Any]) -> dict[str, Any]:
        checkpoint_owner.check(metadata, self._settings, self.path / CHECKPOINT)
        return check_facts(metadata, self.path / CHECKPOINT)

    def rewind(self) -> tuple[int, Tree, list[dict[str, Any]]] | None:
        """Go back to the checkpoint: its round, its state and the metrics up to it; None if there is none yet.

        Whatever was recorded after it is cut off, as those rounds will be run again.
        """
        path = self.path / CHECKPOINT
        if not path.exists():
            self._write(METRICS, "")
            return None
        state, metadata = self.checkpoint()
        last = round_of(metadata, path)
        rows = self.metrics()[:last]
        if len(rows) < last:
            raise damaged(
                f"{self.path / METRICS} ends before round {last}, where {CHECKPOINT} stands: it was cut or edited"
            )
        self._write(METRICS, "".join(json.dumps(row) + "\n" for row in rows))
        return last, state, rows

    def extend(self, recipe: Recipe) -> None:
        """Let the run go on to more rounds or further stages, and record that it does.

        The last rounds so far are from then on like others: their evaluation stays only where that of a longer run
        would be. The lock is on the recipe's file, which is replaced: this ends it.

        Args:
            recipe: The run's recipe with more rounds or stages.

        Raises:
            BadInput: If another process did so meanwhile.
        """
        old = self.recipe
        if RunFolder.open(self.path).recipe != old:
            raise BadInput(f"{self.path} was changed by another process: try again")
        entry = resume_rules.entry(old, recipe)
        earlier = self.environment().get("extended", [])
        if earlier[-1:] != [entry]:  # a process was killed here before
            self.save_environment({"extended": [*earlier, entry]})
        (self.path / RESULT).unlink(missing_ok=True)
        if recipe.rounds > old.rounds:
            when = (recipe.rounds, old.evaluate_every, old.last_rounds)
            rows = [r if is_evaluated(r["round"], *when) else without_evaluation(r) for r in self.metrics()]
            self._write(METRICS, "".join(json.dumps(row) + "\n" for row in rows))
        self._write(CONFIG, recipe.to_yaml())
        self.recipe = recipe

    def save_stages(self, servers: Mapping[str, Tree]) -> None:
        """Store the server's state after each stage, by the stage's name."""
        save_tree(self.path / STAGE_STATES, Tree(servers))

    def stage_states(self) -> Tree:
        """The server's state after each stage, by the stage's name; empty if there were none."""
        path = self.path / STAGE_STATES
        with damaged_if_bad():
            return load_tree(path)[0] if path.exists() else Tree()

    def initial_weights(self, models: Sequence[Weights]) -> list[Weights]:
        """Store the first weights of models, or return those that are stored.

        Args:
            models: The weights, one entry per model.

        Raises:
            BadInput: If the stored ones are of other architectures.
        """
        path = self.path / INITIAL
        if not path.exists():
            save_tree(path, Tree({str(number): w for number, w in enumerate(models)}))
            return list(models)
        with damaged_if_bad():
            stored = load_tree(path)[0]
        return [stored[str(number)] for number in range(len(models))]

    def finish(self, result: Mapping[str, Any]) -> None:
        """Store the final results; from then on the run is finished."""
        self._write(RESULT, json.dumps(finite(result), indent=2) + "\n")

    def result(self) -> dict[str, Any] | None:
        """The final results, or None if the run is not finished."""
        path = self.path / RESULT
        found = read_object(path, "delete it: the run then goes on from its checkpoint and writes it again")
        return None if found is None else check_record(found, str(path))

    # -- files ------------------------------------------------------------------------------------
    def _write(self, name: str, text: str) -> None:
        with atomic(self.path / name) as draft:
            draft.write_text(text, encoding="utf-8")


def _contents(path: Path) -> list[str]:
    """What a folder holds, but for drafts that a killed process left before it wrote its first file."""
    try:
        return sorted(p.name for p in path.iterdir() if not p.name.startswith(f".{CONFIG}."))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise BadInput(f"{path} is a file, not a folder: select another folder with --out") from None
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror}") from error
