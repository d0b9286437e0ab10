"""The checkpoint of a run: written atomically after rounds, and checked to belong to its run when it is read.

`RunWriter.save` decides what is saved, `Checkpoint.save` writes it. Saving takes a small share of a run's time; on a
GPU a thread writes beside the training.
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

# At most this share of a run goes into checkpoints; the rounds since the last one are run again on resuming.
SHARE = 0.05
OWNER = "settings"  # the entry of a checkpoint's metadata that names its run


def owner_of(recipe: Recipe, objects: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that decide a run's training, as JSON can hold them: they tell its checkpoint from others.

    Rounds and stages that a run can be extended by are not among them, nor is where its records go.

    Args:
        recipe: What is run.
        objects: What was given in Python and no recipe can hold, in a line each.
    """
    later = ["stages", "loggers"]
    if not make_schedule(recipe.lr_schedule).needs_rounds:
        later.append("rounds")
    keys = {k: v for k, v in recipe.flat().items() if k not in later and not k.startswith("stage.")}
    keys |= {f"own {name}": line for name, line in objects.items()}
    values: dict[str, Any] = json.loads(json.dumps(keys, default=str))
    return values


class Checkpoint:
    """The checkpoint file of one run, replaced whole at each save.

    Args:
        path: The file.
        owner: Returns `owner_of` the run.
        before: Called before each is written, to bring to the disk what it counts on.
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
        """True if there is one yet."""
        return self.path.exists()

    @property
    def round(self) -> int:
        """The round after which it was taken; 0 if there is none yet."""
        return int(self.facts()["round"]) if self.exists else 0

    def facts(self) -> dict[str, Any]:
        """Return what it holds besides states: its round, and what callbacks remember and keep.

        Raises:
            DamagedRun: As `load`.
        """
        with damaged_if_bad():
            return self._checked(load_metadata(self.path))

    def load(self) -> tuple[Tree, dict[str, Any]]:
        """Return the states of server and clients, and the facts.

        Raises:
            DamagedRun: If it can't be read, or is of another run.
        """
        with damaged_if_bad():
            state, metadata = load_tree(self.path)
            return state, self._checked(metadata)

    def _checked(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Return a checkpoint's facts, if it belongs to this run."""
        if "round" not in metadata:
            raise damaged(f"{self.path} is no checkpoint of a run: it names no round")
        others = differences(metadata.pop(OWNER, {}), self._owner())
        if others:
            keys = describe(others, "its {key} is {old!r} (this run's is {new!r})")
            raise damaged(f"{self.path} is of another run: {keys}")
        return metadata

    # -- writing ----------------------------------------------------------------------------------
    def save(self, round: int, state: Tree, facts: Mapping[str, Any] | None = None, final: bool = False) -> bool:
        """Save the state after a round, if the last one is long enough ago; return whether it did.

        In the background the state is copied to the host at once and written by a thread; what goes wrong there is
        raised by the next call or by `wait`.

        Args:
            round: The round.
            state: The states of server and clients.
            facts: What else a resumed run needs, as JSON can hold it.
            final: Save it in any case, and before this returns.
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
        """Return whether `save` would save a state now; raises what went wrong in the background."""
        if not final and self._pending is not None and not self._pending.done():
            return False
        self.wait()
        return final or time.monotonic() - self._saved_at >= self._took / SHARE

    def wait(self) -> None:
        """Wait until nothing is being written, and raise what went wrong with the last one."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait and end the thread; what goes wrong with a checkpoint no longer matters where a run has failed."""
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
    """Return a tree in the host's memory, copied in one piece per dtype: a GPU has thousands of tensors.

    Tensors that lie there already are shared, since states are replaced and never changed.
    """
    away = [t for t in tree.tensors() if not on_host(t)]
    copies = unpack({kind: buffer.cpu() for kind, buffer in pack(away).items()}, away)
    return tree.map(lambda t: t if on_host(t) else next(copies))


def on_host(t: Tensor) -> bool:
    """Return whether a tensor lies in the host's memory."""
    return t.device.type == "cpu"
