"""Values of a metric over the rounds of one run, or over the common rounds of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def values_by_round(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[int, float]:
    """Return the values of a metric, or of another number in the records, by round."""
    values = {r["round"]: r.get(metric, (r.get("metrics") or {}).get(metric)) for r in rows}
    return {number: value for number, value in values.items() if value is not None}


def aligned(
    histories: Sequence[Sequence[Mapping[str, Any]]], metric: str, most: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the common rounds of a metric and its values; runs without the metric are excluded.

    Args:
        histories: Records of each run's rounds.
        metric: Metric.
        most: Maximum number of rounds, evenly spaced; None: all.

    Returns:
        The rounds, and the values [runs, rounds].
    """
    series = [values for rows in histories if (values := values_by_round(rows, metric))]
    common = sorted(set.intersection(*map(set, series))) if series else []
    if most is not None and len(common) > most:
        common = [common[i] for i in np.unique(np.linspace(0, len(common) - 1, most).round().astype(int))]
    table = np.array([[each[r] for r in common] for each in series], dtype=np.float64)
    return np.array(common, dtype=np.int64), table
