"""TensorBoard: curves, and histograms over the clients."""

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
    """Write a run's curves and the distribution of its clients for TensorBoard.

    Args:
        folder: Where to write; None: the folder tensorboard in the run folder.
    """

    needs: ClassVar[tuple[str, str]] = ("torch.utils.tensorboard", "tensorboard")
    folder: str | None = None

    def check(self, folder: Path | None) -> None:
        """Refuse to write nowhere, or without TensorBoard."""
        super().check(folder)
        if self.folder is None and folder is None:
            raise BadInput("logger tensorboard: the run has no folder: give one, tensorboard(folder=logs), or out=…")

    def start(self, run: RunInfo) -> None:
        """Open the writer; curves of rounds that were cut from the records on resuming are hidden."""
        from torch.utils.tensorboard import SummaryWriter

        last = max((row["round"] for row in run.earlier), default=0)
        place = self.folder or str((run.folder or Path()) / "tensorboard")
        self._writer = SummaryWriter(place, purge_step=last + 1)

    def log_round(self, row: Row) -> None:
        """Add a point to each curve, and a histogram of what the record holds of each client."""
        for name, value in numbers(row).items():
            if name != "round":
                self._writer.add_scalar(name, value, row["round"])
        for name, values in client_values(row).items():
            self._writer.add_histogram(f"clients/{name}", np.asarray(values), row["round"])

    def close(self) -> None:
        """Write out what is pending."""
        self._writer.close()
