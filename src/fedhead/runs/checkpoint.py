"""Checkpoint of a run: written atomically after rounds, and validated against its run when read.

`RunWriter.save` collects the state and `Checkpoint.save` writes it. Saving takes a small share of a run's time; with
a GPU a background thread writes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from fedhead.core.training.schedules import make_schedule
from fedhead.core.tree.packing import pack, unpack
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import load_metadata, load_tree, save_tree
from fedhead.recipes.differences import describe, differences
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder_schema import damaged, damaged_if_bad

# Largest share of a run's time spent on checkpoints; a resumed run repeats the rounds since the last one.
SHARE = 0.05
OWNER = "settings"  # metadata entry that identifies the run


def owner_of(recipe: Recipe, objects: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON values that identify a run in its checkpoints: all that affect its training.

    Loggers are left out, and so are rounds and stages, by which a run can be extended.

    Args:
        recipe: Recipe of the run.
        objects: Descriptions of Python objects that a recipe can't store.
    """
    later = ["stages", "loggers"]
    if not make_schedule(recipe.lr_schedule).needs_rounds:
        later.append("rounds")
    keys = {k: v for k, v in recipe.flat().items() if k not in later and not k.startswith("stage.")}
    keys |= {f"own {name}": line for name, line in objects.items()}
    values: dict[str, Any] = json.loads(json.dumps(keys, default=str))
    return values


class Checkpoint:
    """Checkpoint file of one run, replaced atomically at each save.

    Args:
        path: Checkpoint file.
        owner: Function that returns the run's identity, see `owner_of`.
        before: Called before each write, to flush the files that the checkpoint depends on.
    """

    def __init__(self, path: Path, owner: Callable[[], dict[str, Any]], before: Callable[[], None]):
        self.path = path
        self.in_background = False
        self._owner = owner
        self._before = before
        self._saved_at, self._took = -math.inf, 0.0
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    # -- reading ----------------------------------------------------------------------------------
    @property
    def exists(self) -> bool:
        """True if the file exists."""
        return self.path.exists()

    @property
    def round(self) -> int:
        """Round of the checkpoint; 0 without a checkpoint."""
        return int(self.facts()["round"]) if self.exists else 0

    def facts(self) -> dict[str, Any]:
        """Return the metadata: the round, and the states of callbacks.

        Raises:
            DamagedRun: As `load`.
        """
        with damaged_if_bad():
            return self._checked(load_metadata(self.path))

    def load(self) -> tuple[Tree, dict[str, Any]]:
        """Return the states of server and clients, and the metadata.

        Raises:
            DamagedRun: If the file can't be read, or belongs to another run.
        """
        with damaged_if_bad():
            state, metadata = load_tree(self.path)
            return state, self._checked(metadata)

    def _checked(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Check that a checkpoint belongs to this run and return its metadata."""
        if "round" not in metadata:
            raise damaged(f"{self.path} is no checkpoint of a run: it names no round")
        others = differences(metadata.pop(OWNER, {}), self._owner())
        if others:
            keys = describe(others, "its {key} is {old!r} (this run's is {new!r})")
            raise damaged(f"{self.path} is of another run: {keys}")
        return metadata

    # -- writing ----------------------------------------------------------------------------------
    def save(self, round: int, state: Tree, facts: Mapping[str, Any] | None = None, final: bool = False) -> bool:
        """Save the state after a round if a checkpoint is due; return whether it was saved.

        In the background, the state is copied to the host immediately and a thread writes it. The next call, or
        `wait`, raises the thread's errors.

        Args:
            round: Round.
            state: States of server and clients.
            facts: Further JSON values that a resumed run needs.
            final: Save in any case, and wait for the write.
        """
        if not self.is_due(final):
            return False
        metadata = {"round": round, OWNER: self._owner(), **(facts or {})}
        if final or not self.in_background:
            self._write(state, metadata)
            return True
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending = self._pool.submit(self._write, to_host(state), metadata)
        return True

    def is_due(self, final: bool = False) -> bool:
        """Return whether `save` would save a state now; raise an error of the background thread."""
        if not final and self._pending is not None and not self._pending.done():
            return False
        self.wait()
        return final or time.monotonic() - self._saved_at >= self._took / SHARE

    def wait(self) -> None:
        """Wait for the background thread and raise its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait for the thread and end it, ignoring its errors: the run has finished or failed."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    def _write(self, state: Tree, metadata: dict[str, Any]) -> None:
        begin = time.monotonic()
        self._before()
        save_tree(self.path, state, metadata)
        self._saved_at = time.monotonic()
        self._took = self._saved_at - begin


def to_host(tree: Tree) -> Tree:
    """Copy a tree to host memory, packed into one transfer per dtype.

    Tensors that are already on the host are shared, since states are never modified in place.
    """
    away = [t for t in tree.tensors() if not on_host(t)]
    copies = unpack({kind: buffer.cpu() for kind, buffer in pack(away).items()}, away)
    return tree.map(lambda t: t if on_host(t) else next(copies))


def on_host(t: Tensor) -> bool:
    """Return whether a tensor is in host memory."""
    return t.device.type == "cpu"
