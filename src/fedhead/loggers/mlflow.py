"""MLflow logger: recipe, curves and results on a tracking server or in a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedhead.loggers.base import Logger, RemoteRun, RunInfo, logger, numbers
from fedhead.metrics.records import Row

_LONGEST = 500  # MLflow's maximum number of characters of a parameter


@logger("mlflow")
@dataclass
class MLflow(Logger):
    """MLflow tracking; a resumed run continues the same MLflow run.

    Args:
        uri: Tracking server or folder; None: the value of MLFLOW_TRACKING_URI.
        experiment: Name of the experiment, created if it does not exist.
    """

    needs: ClassVar[tuple[str, str]] = ("mlflow", "mlflow")
    uri: str | None = None
    experiment: str = "fedhead"

    def start(self, run: RunInfo) -> None:
        """Create the MLflow run with the recipe as its parameters, or continue the one stored in the run folder."""
        from mlflow import MlflowClient

        self._finished = False
        self._client = MlflowClient(tracking_uri=self.uri)
        self._remote = RemoteRun.of(run, self.name)
        if self._remote.identity:
            self._client.update_run(self._remote.identity, status="RUNNING")
        else:
            existing = self._client.get_experiment_by_name(self.experiment)
            number = existing.experiment_id if existing is not None else self._client.create_experiment(self.experiment)
            name = None if run.folder is None else Path(run.folder).name
            self._remote.identity = self._client.create_run(number, run_name=name).info.run_id
            self._remote.save(0)
            for key, value in run.recipe.items():
                self._client.log_param(self._remote.identity, _name(key), str(value)[:_LONGEST])
        for row in run.earlier:
            self.log_round(row)

    def log_round(self, row: Row) -> None:
        """Log a point of each curve; skip rounds that were logged before resuming."""
        if row["round"] <= self._remote.round:
            return
        for name, value in numbers(row).items():
            if name != "round":
                self._client.log_metric(self._remote.identity, _name(name), float(value), step=row["round"])
        self._remote.save(row["round"])

    def log_result(self, result: Mapping[str, Any]) -> None:
        """Log the results as a JSON file, and note that the run has finished."""
        self._client.log_dict(self._remote.identity, dict(result), "result.json")
        self._finished = True

    def close(self) -> None:
        """Mark the run as finished, or as killed if it ended early."""
        self._client.set_terminated(self._remote.identity, "FINISHED" if self._finished else "KILLED")


def _name(text: str) -> str:
    """Return a name with characters that MLflow allows.

    >>> _name("ece(bins=10)")
    'ece_bins_10'
    """
    return re.sub(r"[^\w\-./ ]+", "_", text).strip("_")
