"""The metrics of a finished run and of its stages, from their records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line imports this before it needs torch
    from fedhead.core.tree.tree import Tree, Weights

Row = dict[str, Any]  # the record of one round, of a stage, or of a whole run


@dataclass
class StageResult:
    """What a stage made of a trained federation.

    Args:
        name: Name of the stage.
        server: The server's state after it.
        states: The clients' states after it, as the transport holds them.
        metrics: The record of the stage.
        weights: The global model; None where the stage leaves none.
    """

    name: str
    server: Tree
    states: Any
    metrics: Row
    weights: Weights | None

    @property
    def accuracy(self) -> float | None:
        """Per cent on the global test set; None where the stage leaves no global model."""
        return self.metrics["accuracy"]  # type: ignore[no-any-return]  # rows are untyped

    @property
    def personal(self) -> float | None:
        """Per cent on the clients' own test sets, the mean over clients; None where they have none."""
        return self.metrics["personal"]  # type: ignore[no-any-return]  # rows are untyped


def kept_round(rows: list[Row]) -> int | None:
    """Return the latest round whose models a callback has kept, if there is one."""
    return next((row["round"] for row in reversed(rows) if row.get("kept")), None)


def final_rows(rows: list[Row]) -> list[Row]:
    """Return the records up to the round that a run ends with: the kept one, or the last."""
    return rows[: kept_round(rows)]


class RunMetrics(ABC):
    """The metrics of a finished run, computed from the records of its rounds and its stages."""

    executor: str
    rows: list[Row]  # the records of all rounds
    last_rounds: int
    preparing: float = 0.0  # seconds that training waited for compiling and capturing, which `seconds` leaves out
    compiled_from: int | None = None  # from which round on the steps were compiled; None: they never were

    @property
    @abstractmethod
    def stage_rows(self) -> dict[str, Row]:
        """The records of the stages, by name."""

    @property
    def best_round(self) -> int | None:
        """The round whose models a callback has kept and the run ends with; None: the last one's."""
        return kept_round(self.rows)

    @property
    def accuracy(self) -> float | None:
        """Per cent on the global test set after the last round, or after the one whose models were kept."""
        return self._last("accuracy")

    @property
    def accuracy_mean(self) -> float | None:
        """The mean of `accuracy` over the last rounds that were evaluated (`last_rounds` of them)."""
        found = [row["accuracy"] for row in final_rows(self.rows) if row.get("accuracy") is not None]
        found = found[-self.last_rounds :]
        return sum(found) / len(found) if found else None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that were asked for, after the last round."""
        return next((dict(row["metrics"]) for row in reversed(final_rows(self.rows)) if row.get("metrics")), {})

    @property
    def personal(self) -> float | None:
        """Per cent on the clients' own test sets after the last round, the mean over clients."""
        return self._last("personal")

    @property
    def train_loss(self) -> float | None:
        """The mean loss of local training in the last round, weighted by the clients' samples."""
        return self._last("train_loss")

    @property
    def test_loss(self) -> float | None:
        """The mean cross entropy on the global test set after the last round."""
        return self._last("test_loss")

    @property
    def bytes_up(self) -> int:
        """Bytes that all clients sent, over all rounds and stages."""
        return int(sum(row["bytes_up"] for row in self._rows()))

    @property
    def bytes_down(self) -> int:
        """Bytes that all clients received, over all rounds and stages."""
        return int(sum(row["bytes_down"] for row in self._rows()))

    @property
    def client_bytes(self) -> dict[str, float]:
        """Bytes that one client sent (up) and received (down) in one round, the mean over rounds and clients."""
        clients = sum(row.get("participants", 0) for row in self.rows)
        found = {way: sum(row[f"bytes_{way}"] for row in self.rows) for way in ("up", "down")}
        return {way: total / clients for way, total in found.items()} if clients else {}

    @property
    def seconds(self) -> float:
        """The time spent on rounds and stages."""
        return float(sum(row["seconds"] for row in self._rows()))

    def _last(self, name: str) -> float | None:
        return next((row[name] for row in reversed(final_rows(self.rows)) if row.get(name) is not None), None)

    def _rows(self) -> list[Row]:
        return [*self.rows, *self.stage_rows.values()]
