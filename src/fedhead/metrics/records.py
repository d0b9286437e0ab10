"""Metrics of a finished run and its stages, computed from records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedhead.privacy.guarantee import Guarantee

if TYPE_CHECKING:  # the command line imports this before it needs torch
    from fedhead.core.tree.tree import Tree, Weights

Row = dict[str, Any]  # record of a round, a stage or a whole run


@dataclass(repr=False)
class StageResult:
    """Result of a stage.

    Args:
        name: Name of the stage.
        server: Server state after the stage.
        states: Client states after the stage, as the transport stores them.
        metrics: Record of the stage.
        weights: Weights of the global model; None if the stage has no global model.
    """

    name: str
    server: Tree
    states: Any
    metrics: Row
    weights: Weights | None

    def __repr__(self) -> str:
        """Show the accuracies without the weights."""
        return f"StageResult({self.name!r}, accuracy={self.accuracy}, personal={self.personal})"

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the global test set in per cent; None if the stage has no global model."""
        return self.metrics["accuracy"]  # type: ignore[no-any-return]  # rows are untyped

    @property
    def personal(self) -> float | None:
        """Mean accuracy of the personal models on the clients' own test sets in per cent; None without these sets."""
        return self.metrics["personal"]  # type: ignore[no-any-return]  # rows are untyped


def kept_round(rows: list[Row]) -> int | None:
    """Return the last round whose models a callback has kept, or None."""
    return next((row["round"] for row in reversed(rows) if row.get("kept")), None)


def final_rows(rows: list[Row]) -> list[Row]:
    """Return the records up to the final round: the kept round, or the last one."""
    return rows[: kept_round(rows)]


def tested_of(row: Row, every: int) -> str:
    """Return such as "2 of 3" if failed or absent clients are missing in the record's means over clients; else ""."""
    tested = sum(value is not None for value in row.get("clients") or [])
    lost = row.get("failed") or row.get("absent")
    return f"{tested} of {every}" if lost and tested < every else ""


class RunMetrics(ABC):
    """Base class with the metrics of a finished run, computed from the records of its rounds and stages."""

    executor: str
    rows: list[Row]  # records of all rounds
    last_rounds: int
    compile_seconds: float = 0.0  # seconds of compiling and graph capture, excluded from `seconds`
    compiled_from: int | None = None  # first round with compiled steps; None: no compiled steps

    @property
    @abstractmethod
    def stage_rows(self) -> dict[str, Row]:
        """Record of each stage."""

    @property
    def guarantees(self) -> list[Guarantee]:
        """Differential privacy of the protected releases, in order; empty without protection."""
        rows = [*self.rows[-1:], *self.stage_rows.values()]  # that of a round covers all rounds before
        return [Guarantee(**row["privacy"]) for row in rows if row.get("privacy")]

    @property
    def best_round(self) -> int | None:
        """Round whose models a callback restored at the end of the run; None if the last round's are kept."""
        return kept_round(self.rows)

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the global test set in per cent, after the last round or the kept one."""
        return self._last("accuracy")

    @property
    def accuracy_mean(self) -> float | None:
        """Mean of `accuracy` over the last `last_rounds` evaluated rounds."""
        values = [row["accuracy"] for row in final_rows(self.rows) if row.get("accuracy") is not None]
        values = values[-self.last_rounds :]
        return sum(values) / len(values) if values else None

    @property
    def metrics(self) -> dict[str, float]:
        """Additional metrics after the last evaluated round."""
        return next((dict(row["metrics"]) for row in reversed(final_rows(self.rows)) if row.get("metrics")), {})

    @property
    def personal(self) -> float | None:
        """Mean accuracy of the personal models on the clients' own test sets in per cent, after the last round."""
        return self._last("personal")

    @property
    def train_loss(self) -> float | None:
        """Mean training loss of the last round, weighted by the clients' samples."""
        return self._last("train_loss")

    @property
    def test_loss(self) -> float | None:
        """Mean loss on the global test set after the last round."""
        return self._last("test_loss")

    @property
    def bytes_up(self) -> int:
        """Bytes sent by all clients, over all rounds and stages."""
        return int(sum(row["bytes_up"] for row in self._rows()))

    @property
    def bytes_down(self) -> int:
        """Bytes received by all clients, over all rounds and stages."""
        return int(sum(row["bytes_down"] for row in self._rows()))

    @property
    def client_bytes(self) -> dict[str, float]:
        """Mean bytes sent (up) and received (down) by one client in one round."""
        clients = sum(row.get("participants", 0) for row in self.rows)
        totals = {direction: sum(row[f"bytes_{direction}"] for row in self.rows) for direction in ("up", "down")}
        return {direction: total / clients for direction, total in totals.items()} if clients else {}

    @property
    def seconds(self) -> float:
        """Seconds spent on rounds and stages."""
        return float(sum(row["seconds"] for row in self._rows()))

    def _last(self, name: str) -> float | None:
        return next((row[name] for row in reversed(final_rows(self.rows)) if row.get(name) is not None), None)

    def _rows(self) -> list[Row]:
        return [*self.rows, *self.stage_rows.values()]
