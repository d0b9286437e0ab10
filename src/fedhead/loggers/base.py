"""Base class, registry and shared helpers of loggers.

The run folder holds a run's records; loggers send them to other tools (`runs/run_loggers.py`).
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedhead.core.components.component import Component
from fedhead.core.components.registry import Registry
from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput
from fedhead.metrics.records import Row


@dataclass(frozen=True)
class RunInfo:
    """Description of a run for its loggers.

    Args:
        recipe: Recipe of the run, with flat keys.
        folder: Run folder; None: no run folder.
        earlier: Records of earlier rounds, for a resumed run.
    """

    recipe: Mapping[str, Any]
    folder: Path | None
    earlier: Sequence[Row]


@dataclass
class Logger(Component):
    """Base class of loggers, which send the records of one run to another tool; fields are parameters.

    Attributes:
        needs: Required module, and the extra of fedhead that installs it.
    """

    needs: ClassVar[tuple[str, str] | None] = None

    def check(self, folder: Path | None) -> None:
        """Raise `BadInput` if the logger can't be used; called before the run starts.

        Args:
            folder: Run folder, which does not exist yet; None: no run folder.
        """
        if self.needs is None:
            return
        module, extra = self.needs
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise BadInput(
                f"logger {self.name} needs {extra}: install it with pip install 'fedhead[{extra}]'"
            ) from error

    def start(self, run: RunInfo) -> None:
        """Start logging a new or resumed run.

        Args:
            run: Description of the run.
        """

    def log_round(self, row: Row) -> None:
        """Log the record of a round.

        Args:
            row: Record of the round.
        """

    def log_result(self, result: Mapping[str, Any]) -> None:
        """Log the final results of a run.

        Args:
            result: Content of `result.json`.
        """

    def close(self) -> None:
        """Flush pending data and close the logger, also after a failed run."""


LOGGERS = Registry.of(Logger, home=["fedhead.loggers"])
"""Registry of loggers."""
logger = LOGGERS.decorator
"""Decorator that registers a subclass of `Logger` under a name, for recipes and the command line."""


@dataclass
class RemoteRun:
    """Identity of a run at a tracking service and its last logged round, stored in the run folder.

    Args:
        file: JSON file in the run folder; None: no run folder, so no resuming.
        identity: Run identifier at the service; empty: not created yet.
        round: Last logged round.
    """

    file: Path | None
    identity: str = ""
    round: int = 0

    @classmethod
    def of(cls, run: RunInfo, name: str) -> RemoteRun:
        """Return the stored identity of a resumed run, or a new one."""
        file = None if run.folder is None else run.folder / f"{name}.json"
        if not run.earlier or file is None or not file.is_file():
            return cls(file)
        stored = json.loads(file.read_text(encoding="utf-8"))
        return cls(file, str(stored["id"]), int(stored["round"]))

    def save(self, round: int) -> None:
        """Store the last logged round."""
        self.round = round
        if self.file is not None:
            with atomic(self.file) as draft:
                draft.write_text(json.dumps({"id": self.identity, "round": round}) + "\n", encoding="utf-8")


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return all scalars of a record, with nested metrics and validation values flattened.

    >>> numbers({"round": 1, "lr": 0.1, "personal": None, "metrics": {"f1": 0.5}, "validation": {"loss": 2.0}})
    {'round': 1, 'lr': 0.1, 'f1': 0.5, 'validation_loss': 2.0}
    """
    values = {**row, **(row.get("metrics") or {})}
    values |= {f"validation_{name}": value for name, value in (row.get("validation") or {}).items()}
    values |= {f"personal_{name}": value for name, value in (row.get("personal_metrics") or {}).items()}
    return {name: value for name, value in values.items() if is_number(value)}


def client_values(row: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the per-client values of a record: training loss, test accuracy and test loss."""
    losses = row.get("client_train_loss")
    columns = {
        "train_loss": list(losses.values()) if losses else [],
        "accuracy": row.get("clients") or [],
        "test_loss": row.get("client_test_loss") or [],
    }
    valid = {name: [value for value in values if is_number(value)] for name, values in columns.items()}
    return {name: values for name, values in valid.items() if values}


def is_number(value: Any) -> bool:
    """Return whether a value of a record is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
