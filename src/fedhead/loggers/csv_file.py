"""CSV logger, one line per round."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput
from fedhead.loggers.base import Logger, RunInfo, logger, numbers
from fedhead.metrics.records import Row


@logger("csv")
@dataclass
class CSVLogger(Logger):
    """CSV file with all scalars of each round.

    Args:
        path: Output file; None: metrics.csv in the run folder.
    """

    path: str | None = None

    def check(self, folder: Path | None) -> None:
        """Raise `BadInput` if there is neither a path nor a run folder."""
        if self.path is None and folder is None:
            raise BadInput("logger csv: the run has no folder: give the file, csv(path=metrics.csv), or out=…")

    def start(self, run: RunInfo) -> None:
        """Write the earlier rounds of a resumed run."""
        self._file = Path(self.path) if self.path is not None else (run.folder or Path()) / "metrics.csv"
        self._lines = [numbers(row) for row in run.earlier]
        self._write()

    def log_round(self, row: Row) -> None:
        """Write all rounds so far."""
        self._lines.append(numbers(row))
        self._write()

    def _write(self) -> None:
        columns = list(dict.fromkeys(name for line in self._lines for name in line)) or ["round"]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with atomic(self._file) as draft, draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self._lines)
