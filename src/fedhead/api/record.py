"""Records of a run as data frames and plots, without weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedhead.api import frames
from fedhead.core.system.errors import BadInput
from fedhead.metrics.records import Row, RunMetrics, final_rows
from fedhead.recipes.recipe import Recipe
from fedhead.runs.read_runs import Run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from fedhead.report.page.page import Page


class RecordedResult(RunMetrics):
    """Records of a run.

    Args:
        record: Recipe and records of the run.
    """

    def __init__(self, record: Run):
        self.record = record
        self.rows, self.executor = record.rows, str(record.environment.get("executor", ""))
        self.compile_seconds = float((record.result or {}).get("compile_seconds") or 0.0)
        self.compiled_from = record.environment.get("compiled_from")
        self.last_rounds = record.recipe.last_rounds

    @property
    def stage_rows(self) -> dict[str, Row]:
        """Records by stage name."""
        return self.record.stage_rows

    @property
    def recipe(self) -> Recipe:
        """Recipe of the run."""
        return self.record.recipe

    @property
    def path(self) -> Path | None:
        """Run folder, if any."""
        return self.record.folder

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by their indices; None: the classes have no names."""
        return self.record.class_names

    @property
    def finished(self) -> bool:
        """True if the run is finished."""
        return self.record.finished

    @property
    def stopped(self) -> str | None:
        """End before the last planned round, such as "after round 6 of 40 by early_stopping"; None: no early end."""
        reason = (self.record.result or {}).get("stopped")
        cause = "the privacy budget" if reason == "privacy" else reason
        early = reason is not None and len(self.rows) < self.recipe.rounds
        return f"after round {len(self.rows)} of {self.recipe.rounds} by {cause}" if early else None

    @property
    def history(self) -> pd.DataFrame:
        """Scalar values, one row per round."""
        return frames.history(self.rows)

    @property
    def clients(self) -> pd.DataFrame:
        """Number of training samples, and personal accuracies after the rounds and each stage, one row per client."""
        record = self.record
        return frames.clients(final_rows(self.rows), record.stage_rows, record.counts, record.client_names)

    @property
    def partition(self) -> pd.DataFrame:
        """Number of training samples by client (rows) and class (columns; without single classes one column)."""
        if self.record.counts is None:
            raise BadInput(f"{self.path} was stopped before its data was split: resume it first")
        return frames.counts(self.record.counts, self.record.client_names, self.record.class_names)

    def plot(self, metric: str | None = None) -> Figure:
        """Plot a column of `history` over the rounds, with the stages as lines.

        Args:
            metric: Column; None: the accuracy, or else the test loss.

        Returns:
            A matplotlib figure.

        Raises:
            BadInput: If no round has such a value.
        """
        from fedhead.report.figures import plots

        frame = self.history
        if metric is None:
            metric = "accuracy" if "accuracy" in frame and frame["accuracy"].notna().any() else "test_loss"
        if metric not in frame or frame[metric].isna().all():
            known = ", ".join(name for name in frame.columns if not frame[name].isna().all())
            raise BadInput(f"plot: no round has {metric!r}; there is {known or 'nothing yet'}")
        values = frame[metric].dropna()
        after = {name: row[metric] for name, row in self.stage_rows.items() if row.get(metric) is not None}
        return plots.curve(values.index.tolist(), values.tolist(), metric, after)

    def show(self) -> Page:
        """Return the report of this run, which notebooks show inline: curves, classes, clients, partition.

        Returns:
            The page; `save` writes it to a file.
        """
        from fedhead.report.page.content import Content
        from fedhead.report.page.page import page

        return page(Content([self.record]))

    # -- display ----------------------------------------------------------------------------------
    def __repr__(self) -> str:
        """Show the accuracies; None without a test set."""
        shown = {"accuracy": self.accuracy, "personal": self.personal}
        if self.recipe.objective == "regression":
            shown = {"test_loss": self.test_loss, "personal_loss": self._last("personal_loss")}
        parts = [f"{name}={_rounded(value)}" for name, value in shown.items()]
        after = {name: _rounded(row.get("accuracy")) for name, row in self.stage_rows.items()}
        parts += [f"stages={after}", f"rounds={len(self.rows)}", f"executor={self.executor!r}"]
        parts += [] if self.stopped is None else [f"stopped={self.stopped!r}"]
        parts += [] if self.path is None else [f"path={str(self.path)!r}"]
        parts += [] if self.finished else [self.record.state]
        return f"{type(self).__name__}({', '.join(parts)})"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
