"""Store of a site's client states on disk, by experiment and site name.

States are stored by round, together with the previous one. Every request names the last round in which this site's
reply was accepted, and the site starts from that state. So a lost, late or rejected reply, or a round that a resumed
server repeats, has no effect.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fedhead.core.system.atomic_file import atomic
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import load_tree, save_tree
from fedhead.flower.wire.protocol import RunSpec
from fedhead.flower.wire.site_errors import SiteProblem


def first_draw(path: Path, spec: RunSpec, number: int) -> dict[str, Any]:
    """Return the seed and client number of a site's first run, which draw its test samples in all later runs too.

    So no server can change the training samples of a site. The first run equals a simulation with the same seed.
    Its classes and its objective are returned as well: the draw depends on them, so later runs must have the same.
    """
    unfitted = spec.schema is not None and spec.columns is None  # the classes of a table may not be known yet
    names = None if unfitted else list(spec.class_names or map(str, range(spec.classes)))
    run = {"seed": int(spec.recipe["seed"]), "number": number, "objective": spec.objective, "classes": names}
    first = _read_draw(path) if path.exists() else run
    for key in ("objective", "classes"):
        if None not in (first[key], run[key]) and first[key] != run[key]:
            raise SiteProblem(
                "policy",
                f"the run's {key} differ from those of this site's first run, and would draw other samples: "
                f"delete {path} if you agree to this run",
            )
    return first | {"classes": first["classes"] or names}


def keep_draw(path: Path, first: dict[str, Any]) -> None:
    """Write the file of the first draw if it is missing, or its classes were not known."""
    if path.exists() and _read_draw(path) == first:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as draft:
            draft.write_text(json.dumps(first))
    except OSError as error:
        raise unwritable(path, error) from error


def _read_draw(path: Path) -> dict[str, Any]:
    try:
        first = json.loads(path.read_text())
        return {key: first[key] for key in ("seed", "number", "objective", "classes")}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SiteProblem("state", f"{path} can't be read: restore it, or delete it to draw anew") from error


def unwritable(path: Path, error: OSError) -> SiteProblem:
    """Return the problem of a file that can't be written."""
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
            raise unwritable(path, error) from error
