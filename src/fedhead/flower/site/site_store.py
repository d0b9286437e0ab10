"""Store of a site's client states on its own disk, by experiment and by the site's name.

A state is stored by the round that it follows, beside the one that it came from. The server says with every request
which round of this site counted last, and the site goes on from that state: a reply that was lost, late or refused, or
a round that a resumed server asks for again, thus leaves no trace.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import load_tree, save_tree
from fedhead.flower.wire.site_errors import SiteProblem


class SiteStore:
    """The folder of one site for one experiment."""

    def __init__(self, root: str | Path, experiment: str, site: str):
        self.path = Path(root) / experiment / site

    def keep_state(self, round: int, state: Tree, accepted: int) -> None:
        """Store the state after a round; of those before it only the accepted one is still needed."""
        self.save(f"state-{round}", state)
        for old in self.path.glob("state-*.safetensors"):
            number = re.fullmatch(r"state-(\d+)", old.stem)
            if number and int(number[1]) not in (round, accepted):
                old.unlink(missing_ok=True)

    def load(self, name: str) -> Tree | None:
        """Return a tree, such as `state-3`, the state after a round, or `stage-ccvr`; None if it is not here."""
        path = self.path / f"{name}.safetensors"
        return load_tree(path)[0] if path.exists() else None

    def save(self, name: str, tree: Tree) -> None:
        """Store a tree: a state, or a finished model for the site's own use, such as `model-train`."""
        path = self.path / f"{name}.safetensors"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            save_tree(path, tree)
        except OSError as error:
            raise SiteProblem(
                "disk", f"{path} can't be written: {error.strerror}; make room or set another 'state' folder"
            ) from error
