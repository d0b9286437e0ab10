"""Weights & Biases: a run's settings, curves and results, in files of this machine unless it is set online."""

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
    """Track a run with Weights & Biases; a resumed run goes on as the same one.

    Args:
        project: The project's name.
        mode: "offline" writes files that `wandb sync` sends later; "online" sends them at once.
        folder: Where these files go; None: the run folder, or the working directory.
    """

    needs: ClassVar[tuple[str, str]] = ("wandb", "wandb")
    project: str = "fedhead"
    mode: Literal["offline", "online"] = "offline"
    folder: str | None = None

    def start(self, run: RunInfo) -> None:
        """Begin the run with the recipe as its configuration, or go on with that of the run folder."""
        import wandb

        self._wandb = wandb
        self._remote = RemoteRun.of(run, self.name)
        known = self._remote.identity
        place = self.folder or (None if run.folder is None else str(run.folder))
        self._run = wandb.init(
            project=self.project,
            mode=self.mode,
            dir=place,
            name=None if run.folder is None else Path(run.folder).name,
            config=dict(run.recipe),
            id=known or None,
            resume="allow",
            reinit="create_new",
        )
        if not known:
            self._remote.identity = str(self._run.id)
            self._remote.save(0)
        for row in run.earlier:
            self.log_round(row)

    def log_round(self, row: Row) -> None:
        """Add a point to each curve, and a histogram of what the record holds of each client.

        A round that is trained again after a resumption has its points already.
        """
        if row["round"] <= self._remote.round:
            return
        found: dict[str, Any] = {name: value for name, value in numbers(row).items() if name != "round"}
        found |= {f"clients/{name}": self._wandb.Histogram(values) for name, values in client_values(row).items()}
        self._run.log(found, step=row["round"])
        self._remote.save(row["round"])

    def log_result(self, result: Mapping[str, Any]) -> None:
        """Store the final numbers in the run's summary."""
        self._run.summary.update(numbers(result))

    def close(self) -> None:
        """Write out what is pending."""
        self._run.finish()
