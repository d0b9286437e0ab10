"""Files of class statistics: written, read and merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fedhead.calibration import statistics as class_statistics
from fedhead.calibration.statistics import Statistics
from fedhead.core.errors import BadInput
from fedhead.core.tree import Tree
from fedhead.core.treefile import load_tree, save_tree

_KIND = "class statistics"
_WHOLE, _LOW_RANK = {"count", "sum", "outer"}, {"count", "sum", "square", "factor"}  # what a file of them holds


def save_statistics(path: str | Path, statistics: Statistics, rank: int | None = None) -> int:
    """Write statistics to a safetensors file, whole or not at all, and return the bytes of its sums.

    With `rank` covariances are written as that many leading directions each, their diagonals exactly.
    """
    class_statistics.check(statistics, "the statistics")
    tree = statistics.tree() if rank is None else class_statistics.compressed(statistics, rank)
    save_tree(path, tree, {"holds": _KIND, "extractor": statistics.extractor})
    return tree.nbytes


def load_statistics(path: str | Path) -> Statistics:
    """Read statistics; refuses files that are corrupt, and numbers that no features could have given.

    Those of a low rank come back with whole covariances, as far as they were written.
    """
    tree, metadata = load_tree(path)
    if metadata.get("holds") != _KIND or set(tree) not in (_WHOLE, _LOW_RANK):
        raise BadInput(f"{path} holds no class statistics: make it with fedhead statistics")
    _refuse_shapes(tree, str(path))
    statistics = replace(class_statistics.expand(tree), extractor=str(metadata.get("extractor", "")))
    return class_statistics.check(statistics, str(path))


def _refuse_shapes(tree: Tree, source: str) -> None:
    c, d = len(tree["count"]), tree["sum"].shape[-1]
    fitting: dict[str, set[tuple[int, ...]]] = {
        "count": {(c,)},
        "sum": {(c, d)},
        "outer": {(c, d), (c, d * (d + 1) // 2)},
        "square": {(c, d)},
        "factor": {(c, rank, d) for rank in range(d + 1)},
    }
    if any(tuple(t.shape) not in fitting[name] or t.dtype != torch.float64 for name, t in tree.items()):
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tree.items())
        raise BadInput(f"{source}: the sums don't fit each other ({shapes}); make it anew with fedhead statistics")


def merge_files(paths: Sequence[str | Path]) -> Statistics:
    """The statistics of all sites together; one file is held beside the total at a time."""

    def read() -> Iterator[Statistics]:
        first: tuple[int, int, str, str] | None = None
        for path in paths:
            part = load_statistics(path)
            form = (part.classes, part.features, part.kind, part.extractor)
            first = first or form
            if form != first:
                raise BadInput(
                    f"{path} is of another model than {paths[0]} ({form[0]} classes, {form[1]} features, {form[2]}; "
                    f"there {first[0]}, {first[1]}, {first[2]}, or other weights): use one model for all"
                )
            yield part
            del part  # before the next file is read

    return class_statistics.merge(read())
