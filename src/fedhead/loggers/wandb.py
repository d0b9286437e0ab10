"""Weights & Biases logger: recipe, curves and results, offline by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedhead.loggers.base import Logger, RemoteRun, RunInfo, client_values, logger, numbers
from fedhead.metrics.records import Row


@logger("wandb")
@dataclass
class WandB(Logger):
    """Weights & Biases tracking; a resumed run continues the same W&B run.

    Args:
        project: Name of the project.
        mode: "offline" writes files that `wandb sync` uploads later; "online" uploads immediately.
        folder: Folder for these files; None: the run folder, or the working directory.
    """

    needs: ClassVar[tuple[str, str]] = ("wandb", "wandb")
    project: str = "fedhead"
    mode: Literal["offline", "online"] = "offline"
    folder: str | None = None

    def start(self, run: RunInfo) -> None:
        """Start the W&B run with the recipe as its config, or continue the one stored in the run folder."""
        import wandb

        self._wandb = wandb
        self._remote = RemoteRun.of(run, self.name)
        identity = self._remote.identity
        folder = self.folder or (None if run.folder is None else str(run.folder))
        self._run = wandb.init(
            project=self.project,
            mode=self.mode,
            dir=folder,
            name=None if run.folder is None else Path(run.folder).name,
            config=dict(run.recipe),
            id=identity or None,
            resume="allow",
            reinit="create_new",
        )
        if not identity:
            self._remote.identity = str(self._run.id)
            self._remote.save(0)
        for row in run.earlier:
            self.log_round(row)

    def log_round(self, row: Row) -> None:
        """Log a point of each curve, and histograms of the per-client values.

        Rounds that were logged before resuming are skipped.
        """
        if row["round"] <= self._remote.round:
            return
        values: dict[str, Any] = {name: value for name, value in numbers(row).items() if name != "round"}
        values |= {f"clients/{name}": self._wandb.Histogram(column) for name, column in client_values(row).items()}
        self._run.log(values, step=row["round"])
        self._remote.save(row["round"])

    def log_result(self, result: Mapping[str, Any]) -> None:
        """Store the final scalars in the run's summary."""
        self._run.summary.update(numbers(result))

    def close(self) -> None:
        """Flush pending data and finish the run."""
        self._run.finish()
