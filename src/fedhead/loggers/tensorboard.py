"""TensorBoard logger: curves, and histograms over the clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedhead.core.system.errors import BadInput
from fedhead.loggers.base import Logger, RunInfo, client_values, logger, numbers
from fedhead.metrics.records import Row


@logger("tensorboard")
@dataclass
class TensorBoard(Logger):
    """TensorBoard files with curves, and histograms over the clients.

    Args:
        folder: Output folder; None: the folder tensorboard in the run folder.
    """

    needs: ClassVar[tuple[str, str]] = ("torch.utils.tensorboard", "tensorboard")
    folder: str | None = None

    def check(self, folder: Path | None) -> None:
        """Raise `BadInput` if there is no output folder, or if TensorBoard is not installed."""
        super().check(folder)
        if self.folder is None and folder is None:
            raise BadInput("logger tensorboard: the run has no folder: give one, tensorboard(folder=logs), or out=…")

    def start(self, run: RunInfo) -> None:
        """Open the writer; purge points of rounds that will be trained again after resuming."""
        from torch.utils.tensorboard import SummaryWriter

        last = max((row["round"] for row in run.earlier), default=0)
        folder = self.folder or str((run.folder or Path()) / "tensorboard")
        self._writer = SummaryWriter(folder, purge_step=last + 1)

    def log_round(self, row: Row) -> None:
        """Log a point of each curve, and histograms of the per-client values."""
        for name, value in numbers(row).items():
            if name != "round":
                self._writer.add_scalar(name, value, row["round"])
        for name, values in client_values(row).items():
            self._writer.add_histogram(f"clients/{name}", np.asarray(values), row["round"])

    def close(self) -> None:
        """Flush pending data and close the writer."""
        self._writer.close()
