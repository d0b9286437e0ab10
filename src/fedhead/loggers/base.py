"""Loggers, their registry, and what they share.

A run's own records are in its folder; loggers carry them elsewhere (`runs/run_loggers.py`).
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
        recipe: The run's settings, by the recipe's flat keys.
        folder: The run folder; None: the run has none.
        earlier: The records of the rounds before a resumption.
    """

    recipe: Mapping[str, Any]
    folder: Path | None
    earlier: Sequence[Row]


@dataclass
class Logger(Component):
    """Carries the records of one run elsewhere; its fields are its parameters.

    Attributes:
        needs: The module that must be importable, and the extra of fedhead that installs it.
    """

    needs: ClassVar[tuple[str, str] | None] = None

    def check(self, folder: Path | None) -> None:
        """Raise `BadInput`, before anything is computed or written, if the logger can't be used.

        Args:
            folder: The run folder, which is not there yet; None: the run has none.
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
        """Begin, or go on after a resumption.

        Args:
            run: The run's settings, its folder, and the records before a resumption.
        """

    def log_round(self, row: Row) -> None:
        """Carry on the record of a round.

        Args:
            row: The record.
        """

    def log_result(self, result: Mapping[str, Any]) -> None:
        """Carry on the final results of a run.

        Args:
            result: What `result.json` holds.
        """

    def close(self) -> None:
        """Write out what is pending, whether the run came to its end or not."""


LOGGERS = Registry.of(Logger, home=["fedhead.loggers"])
"""The loggers by name."""
logger = LOGGERS.decorator
"""Register a logger under a name, for recipes and the command line: a decorator of subclasses of `Logger`."""


@dataclass
class RemoteRun:
    """Under which identity a service knows a run, and up to which round; kept in a file of the run folder.

    Args:
        file: The file; None: the run has no folder, and can't be resumed.
        identity: The identity; empty: the service does not know the run yet.
        round: The last round that was carried on.
    """

    file: Path | None
    identity: str = ""
    round: int = 0

    @classmethod
    def of(cls, run: RunInfo, name: str) -> RemoteRun:
        """Return what the run folder knows of a run that is resumed, or a new one."""
        file = None if run.folder is None else run.folder / f"{name}.json"
        if not run.earlier or file is None or not file.is_file():
            return cls(file)
        found = json.loads(file.read_text(encoding="utf-8"))
        return cls(file, str(found["id"]), int(found["round"]))

    def save(self, round: int) -> None:
        """Note that a round was carried on."""
        self.round = round
        if self.file is not None:
            with atomic(self.file) as draft:
                draft.write_text(json.dumps({"id": self.identity, "round": round}) + "\n", encoding="utf-8")


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return everything of a record that is one number; those of metrics and validation have their own names.

    >>> numbers({"round": 1, "lr": 0.1, "personal": None, "metrics": {"f1": 0.5}, "validation": {"loss": 2.0}})
    {'round': 1, 'lr': 0.1, 'f1': 0.5, 'validation_loss': 2.0}
    """
    found = {**row, **(row.get("metrics") or {})}
    found |= {f"validation_{name}": value for name, value in (row.get("validation") or {}).items()}
    found |= {f"personal_{name}": value for name, value in (row.get("personal_metrics") or {}).items()}
    return {name: value for name, value in found.items() if is_number(value)}


def client_values(row: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return what a record holds of each client: the losses of training, and accuracy and loss of its own tests."""
    losses = row.get("client_train_loss")
    found = {
        "train_loss": list(losses.values()) if losses else [],
        "accuracy": row.get("clients") or [],
        "test_loss": row.get("client_test_loss") or [],
    }
    there = {name: [value for value in values if is_number(value)] for name, values in found.items()}
    return {name: values for name, values in there.items() if values}


def is_number(value: Any) -> bool:
    """Return whether a value of a record is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
