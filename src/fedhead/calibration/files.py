"""Files of class statistics: saving, loading and merging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fedhead.calibration import statistics as class_statistics
from fedhead.calibration import statistics_check
from fedhead.calibration.statistics import Statistics
from fedhead.core.errors import BadInput
from fedhead.core.tree import Tree
from fedhead.core.treefile import load_tree, save_tree

_KIND = "class statistics"
_WHOLE, _LOW_RANK = {"count", "sum", "outer"}, {"count", "sum", "square", "factor"}  # the entries of a file


def save_statistics(path: str | Path, statistics: Statistics, rank: int | None = None) -> int:
    """Write statistics atomically to a safetensors file.

    Args:
        path: File to write.
        statistics: Statistics to save.
        rank: Number of leading directions to keep of each covariance; diagonals stay exact. None keeps all.

    Returns:
        The size of the sums in bytes.

    Raises:
        BadInput: If the statistics are invalid, or the rank is out of range.
    """
    statistics_check.check(statistics, "the statistics")
    tree = statistics.tree() if rank is None else class_statistics.to_low_rank(statistics, rank)
    save_tree(path, tree, {"holds": _KIND, "extractor": statistics.extractor})
    return tree.nbytes


def load_statistics(path: str | Path) -> Statistics:
    """Read statistics from a file.

    Statistics of a low rank are expanded to full covariances.

    Args:
        path: File written by `save_statistics`.

    Returns:
        The statistics.

    Raises:
        BadInput: If the file is corrupt, or its numbers can't be the statistics of any features.
    """
    tree, metadata = load_tree(path)
    if metadata.get("holds") != _KIND or set(tree) not in (_WHOLE, _LOW_RANK):
        raise BadInput(f"{path} holds no class statistics: create it with fedhead statistics")
    _refuse_shapes(tree, str(path))
    statistics = replace(class_statistics.from_tree(tree), extractor=str(metadata.get("extractor", "")))
    return statistics_check.check(statistics, str(path))


def _refuse_shapes(tree: Tree, source: str) -> None:
    if any(isinstance(t, Tree) for t in tree.values()) or tree["count"].ndim != 1 or tree["sum"].ndim != 2:
        raise BadInput(f"{source}: the sums are of other shapes; create it again with fedhead statistics")
    c, d = tree["sum"].shape
    fitting: dict[str, set[tuple[int, ...]]] = {
        "count": {(c,)},
        "sum": {(c, d)},
        "outer": {(c, d), (c, d * (d + 1) // 2)},
        "square": {(c, d)},
        "factor": {(c, rank, d) for rank in range(d + 1)},
    }
    if any(tuple(t.shape) not in fitting[name] or t.dtype != torch.float64 for name, t in tree.items()):
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tree.items())
        raise BadInput(f"{source}: the sums' shapes don't match ({shapes}); create it again with fedhead statistics")


def merge_files(paths: Sequence[str | Path]) -> Statistics:
    """Merge the statistics of several files, holding one file besides the total in memory at a time.

    Args:
        paths: Files written by `save_statistics`, all for the same model.

    Returns:
        The statistics of all sites together.

    Raises:
        BadInput: If a file can't be read or belongs to a different model.
    """

    def parts() -> Iterator[Statistics]:
        first: tuple[int, int, str, str] | None = None
        for path in paths:
            part = load_statistics(path)
            form = (part.classes, part.features, part.kind, part.extractor)
            first = first or form
            if form != first:
                raise BadInput(
                    f"{path} is from a different model than {paths[0]} ({form[0]} classes, {form[1]} features, "
                    f"{form[2]}; there {first[0]}, {first[1]}, {first[2]}, or other weights): use one model for all"
                )
            yield part
            del part  # before the next file is read

    return class_statistics.merge(parts())
