"""Files of class statistics: saving, loading and merging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedhead.calibration import low_rank, statistics_check
from fedhead.calibration.membership import fingerprint
from fedhead.calibration.statistics import Statistics
from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.log import warn_once
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import load_tree, save_tree

_UNUSUAL = 1000  # ratio of a file's samples to the median of the others above which a warning is due
_KIND = "class statistics"
_ENTRIES = ({"count", "sum"}, {"count", "sum", "outer"}, {"count", "sum", "square", "factor"})  # of valid files


def save_statistics(path: str | Path, statistics: Statistics, rank: int | None = None) -> int:
    """Write statistics atomically to a safetensors file.

    Args:
        path: File to write.
        statistics: Statistics to save.
        rank: Rank of the stored covariances; diagonals stay exact. None: full covariances.

    Returns:
        The size of the sums in bytes.

    Raises:
        BadInput: If the statistics are invalid, or the rank is out of range.
    """
    statistics_check.check(statistics, "the statistics")
    tree = statistics.tree() if rank is None else low_rank.to_low_rank(statistics, rank)
    facts = {"extractor": statistics.extractor, "transform": statistics.transform}
    save_tree(path, tree, {"holds": _KIND, **facts, "members": sorted(statistics.members)})
    return tree.nbytes


def load_statistics(path: str | Path) -> Statistics:
    """Read statistics from a file.

    Low-rank statistics are expanded to full covariances.

    Args:
        path: File written by `save_statistics`.

    Returns:
        The statistics.

    Raises:
        BadInput: If the file is corrupt, or its numbers can't be the statistics of any features.
    """
    return statistics_check.check(_read(path), str(path))


def _read(path: str | Path) -> Statistics:
    """Read statistics without checking their numbers; one site's statistics get their fingerprint as member."""
    tree, metadata = load_tree(path)
    if metadata.get("holds") != _KIND or set(tree) not in _ENTRIES:
        raise BadInput(f"{path} holds no class statistics: create it with fedhead statistics")
    _refuse_shapes(tree, str(path))
    extractor, transform = (str(metadata.get(word, "")) for word in ("extractor", "transform"))
    members = _members(metadata, str(path)) or fingerprint(tree, extractor, transform)
    return replace(low_rank.from_tree(tree), extractor=extractor, transform=transform, members=members)


def _members(metadata: Mapping[str, Any], source: str) -> frozenset[str]:
    members = metadata.get("members", [])
    if not isinstance(members, list) or not all(isinstance(member, str) for member in members):
        raise BadInput(f"{source}: its list of members can't be read; create it again with fedhead statistics")
    return frozenset(members)


def _refuse_shapes(tree: Tree, source: str) -> None:
    nested = any(isinstance(t, Tree) for t in tree.values())
    if nested or tree["count"].ndim != 1 or tree["sum"].ndim != 2 or not tree["sum"].numel():
        raise BadInput(f"{source}: the sums are of other shapes; create it again with fedhead statistics")
    c, d = tree["sum"].shape
    fitting: dict[str, set[tuple[int, ...]]] = {
        "count": {(c,)},
        "sum": {(c, d)},
        "outer": {(c, d), (c, d * (d + 1) // 2), (d * (d + 1) // 2,)},
        "square": {(c, d)},
        "factor": {(c, rank, d) for rank in range(d + 1)},
    }
    if any(tuple(t.shape) not in fitting[name] or t.dtype != torch.float64 for name, t in tree.items()):
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tree.items())
        raise BadInput(f"{source}: the sums' shapes don't match ({shapes}); create it again with fedhead statistics")


def merge_files(paths: Sequence[str | Path]) -> Statistics:
    """Merge the statistics of several files, with at most one file and the total in memory.

    Args:
        paths: Files written by `save_statistics`, all for the same model.

    Returns:
        Statistics of all sites, with their fingerprints as members.

    Raises:
        BadInput: If a file can't be read, has no samples, belongs to a different model, or is given twice.
    """
    samples: dict[int, float] = {}

    def part(index: int) -> Statistics:
        statistics = _read(paths[index])
        samples[index] = float(statistics.count.sum())
        require(samples[index], f"{paths[index]} holds no samples: leave it out")
        return statistics

    merged = statistics_check.merge_checked([str(path) for path in paths], part)
    for index, count in samples.items():
        usual = median([other for i, other in samples.items() if i != index] or [count])
        if count > _UNUSUAL * usual:
            warn_once(f"{paths[index]} has {count:,.0f} samples, the others {usual:,.0f} (median): check this file")
    return merged
