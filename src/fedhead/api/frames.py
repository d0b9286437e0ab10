"""Records of a run as pandas data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhead.metrics.records import Row

if TYPE_CHECKING:
    import pandas as pd


def history(rows: Sequence[Row]) -> pd.DataFrame:
    """Return one row per round with all scalar values; each metric has its own column.

    >>> history([{"round": 1, "accuracy": 50.0, "metrics": {"f1": 0.4}, "clients": [50.0]}])
           accuracy   f1
    round
    1          50.0  0.4
    """
    import pandas as pd

    lines = [{**_numbers(row), **_numbers(row.get("metrics") or {})} for row in rows]
    return pd.DataFrame(lines).set_index("round") if lines else pd.DataFrame(index=pd.Index([], name="round"))


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is None or isinstance(value, int | float)}


def clients(
    rows: Sequence[Row], stage_rows: Mapping[str, Row], counts: NDArray[np.int64] | None, names: Sequence[str] | None
) -> pd.DataFrame:
    """Return one row per client: training samples, and accuracy of its personal model after rounds and stages.

    A regression has the mean loss instead of the accuracy.

    Args:
        rows: Records of the rounds.
        stage_rows: Records of the stages.
        counts: Training samples by client and class.
        names: Names of the clients.
    """
    import pandas as pd

    accuracies = next((row["clients"] for row in reversed(rows) if row.get("clients") is not None), None)
    columns: dict[str, Any] = {} if counts is None else {"samples": counts.sum(axis=1)}
    if accuracies is not None and all(value is None for value in accuracies):  # a regression has only losses
        columns |= {"loss": next(row["client_test_loss"] for row in reversed(rows) if row.get("clients") is not None)}
    elif accuracies is not None:
        columns["accuracy"] = accuracies
    columns |= {f"accuracy_{name}": row["clients"] for name, row in stage_rows.items() if row.get("clients")}
    frame = pd.DataFrame(columns, index=names).rename_axis("client")
    for name in frame.columns.drop("samples", errors="ignore"):
        frame[name] = frame[name].astype(float)  # None (no test samples) becomes NaN
    return frame


def counts(table: NDArray[np.int64], clients: Sequence[str] | None, classes: Sequence[str] | None) -> pd.DataFrame:
    """Label a table of samples by client and class."""
    import pandas as pd

    columns = classes if classes and len(classes) == table.shape[1] else None
    return pd.DataFrame(table, index=clients, columns=columns).rename_axis(index="client", columns="class")


def confusion(table: NDArray[np.int64], classes: Sequence[str] | None) -> pd.DataFrame:
    """Label a confusion matrix with the class names."""
    import pandas as pd

    return pd.DataFrame(table, index=classes, columns=classes).rename_axis(index="class", columns="predicted")
