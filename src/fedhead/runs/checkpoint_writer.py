"""The writer of checkpoints: not too often, and beside the training where a GPU would have to wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from fedhead.core.tree.packing import pack, unpack
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import save_tree

# At most this share of a run goes into checkpoints; the rounds since the last one are run again on resuming.
SHARE = 0.05


class CheckpointWriter:
    """Saves states after rounds to one file, each in place of the last one.

    Args:
        path: The file.
        before: Called before each is written, to bring what it counts on to the disk.
    """

    def __init__(self, path: Path, before: Callable[[], None]):
        self.path = path
        self.in_background = False
        self._before = before
        self._saved_at, self._took = -math.inf, 0.0
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    def save(self, state: Tree, facts: Mapping[str, Any], final: bool = False) -> bool:
        """Save a state, if the last one is long enough ago; says whether it does.

        In the background it is copied to the host at once and written by a thread; what goes wrong there is raised by
        the next call or by `wait`.

        Args:
            state: The states of server and clients.
            facts: What else a resumed run needs, as JSON can hold it.
            final: Whether to save it in any case, and before this returns.
        """
        if not self.is_due(final):
            return False
        if final or not self.in_background:
            self._write(state, facts)
            return True
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending = self._pool.submit(self._write, to_host(state), dict(facts))
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

    def _write(self, state: Tree, facts: Mapping[str, Any]) -> None:
        begin = time.monotonic()
        self._before()
        save_tree(self.path, state, dict(facts))
        self._saved_at = time.monotonic()
        self._took = self._saved_at - begin


def to_host(tree: Tree) -> Tree:
    """Return a tree in the host's memory, copied in one piece per dtype: a GPU has thousands of tensors.

    What lies there already is taken as it is, since states are replaced and never changed.
    """
    away = [t for t in tree.tensors() if not on_host(t)]
    copies = unpack({kind: buffer.cpu() for kind, buffer in pack(away).items()}, away)
    return tree.map(lambda t: t if on_host(t) else next(copies))


def on_host(t: Tensor) -> bool:
    """Return whether a tensor lies in the host's memory."""
    return t.device.type == "cpu"
