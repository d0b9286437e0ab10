"""Store of a site's client states on disk, by experiment and site name.

States are stored by round, together with the previous one. Every request names the last round in which this site's
reply was accepted, and the site starts from that state. So a lost, late or rejected reply, or a round that a resumed
server repeats, has no effect.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from fedhead.core.system.atomic_file import atomic
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import load_tree, save_tree
from fedhead.flower.wire.site_errors import SiteProblem


def first_draw(root: Path, site: str, seed: int, number: int) -> tuple[int, int]:
    """Return the seed and client number of a site's first run, which draw its test samples in all later runs too.

    So no server can change the training samples of a site. The first run equals a simulation with the same seed.
    """
    path = root / f"draw-{site}.json"
    if not path.exists():
        try:
            root.mkdir(parents=True, exist_ok=True)
            with atomic(path) as draft:
                draft.write_text(json.dumps([seed, number]))
        except OSError as error:
            raise _unwritable(path, error) from error
    first_seed, first_number = json.loads(path.read_text())
    return int(first_seed), int(first_number)


def _unwritable(path: Path, error: OSError) -> SiteProblem:
    reason = f"{path} can't be written: {error.strerror}; make room or set another 'state' folder"
    return SiteProblem("disk", reason)


class SiteStore:
    """Folder of one site for one experiment."""

    def __init__(self, root: str | Path, experiment: str, site: str):
        self.path = Path(root) / experiment / site

    def keep_state(self, round: int, state: Tree, accepted: int, best: int = 0) -> None:
        """Store the state after a round and delete earlier ones except the accepted one and that of the best round."""
        self.save(f"state-{round}", state)
        for old in self.path.glob("state-*.safetensors"):
            number = re.fullmatch(r"state-(\d+)", old.stem)
            if number and int(number[1]) not in (round, accepted, best):
                old.unlink(missing_ok=True)

    def load(self, name: str) -> Tree | None:
        """Load a tree, such as `state-3` (the state after round 3) or `stage-ccvr`; None if it is missing."""
        path = self.path / f"{name}.safetensors"
        return load_tree(path)[0] if path.exists() else None

    def save(self, name: str, tree: Tree) -> None:
        """Store a tree: a state, or a final model for the site, such as `model-train`."""
        path = self.path / f"{name}.safetensors"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            save_tree(path, tree)
        except OSError as error:
            raise _unwritable(path, error) from error
