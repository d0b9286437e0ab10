"""The metrics of a finished run, wherever it ran: from its history and from what its stages measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]  # the record of one round, of a stage, or of a whole run


class RunMetrics:
    """What is asked of a finished run; whoever has a history and outcomes of stages can answer it."""

    executor: str
    history: list[Row]
    last_rounds: int
    preparing: float = 0.0  # seconds spent on compiling and capturing, which `seconds` leaves out

    @property
    def measured(self) -> Mapping[str, Row]:
        """The metrics of each stage."""
        raise NotImplementedError

    @property
    def accuracy(self) -> float | None:
        """Per cent on the global test set after the last round."""
        return self._last("accuracy")

    @property
    def accuracy_mean(self) -> float | None:
        """The mean of `accuracy` over the last evaluated rounds (`last_rounds` of them)."""
        found = [row["accuracy"] for row in self.history if row.get("accuracy") is not None][-self.last_rounds :]
        return sum(found) / len(found) if found else None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that were asked for, after the last round."""
        return next((dict(row["metrics"]) for row in reversed(self.history) if row.get("metrics")), {})

    @property
    def personal(self) -> float | None:
        """Per cent on the clients' own test sets after the last round, the mean over clients."""
        return self._last("personal")

    @property
    def stages(self) -> dict[str, float | None]:
        """The accuracy after each stage: the global model's, or the clients' mean where there is none.

        What a fine-tuning stage did for the clients is in `personal_stages`: it leaves the global model as it was.
        """
        return {n: m["personal"] if m["accuracy"] is None else m["accuracy"] for n, m in self.measured.items()}

    @property
    def personal_stages(self) -> dict[str, float | None]:
        """Per cent on the clients' own test sets after each stage, the mean over clients; None where they have none."""
        return {name: metrics["personal"] for name, metrics in self.measured.items()}

    @property
    def bytes_up(self) -> int:
        """Bytes that all clients sent, over all rounds and stages."""
        return self._total("bytes_up")

    @property
    def bytes_down(self) -> int:
        """Bytes that all clients received, over all rounds and stages."""
        return self._total("bytes_down")

    @property
    def client_bytes(self) -> dict[str, float]:
        """Bytes that one client sent (up) and received (down) in one round, the mean over rounds and clients."""
        clients = sum(row.get("participants", 0) for row in self.history)
        found = {way: sum(row[f"bytes_{way}"] for row in self.history) for way in ("up", "down")}
        return {way: total / clients for way, total in found.items()} if clients else {}

    @property
    def seconds(self) -> float:
        """The time spent on rounds and stages."""
        rows = [*self.history, *self.measured.values()]
        return float(sum(row["seconds"] for row in rows))

    def _last(self, name: str) -> float | None:
        return next((row[name] for row in reversed(self.history) if row.get(name) is not None), None)

    def _total(self, name: str) -> int:
        return int(sum(row[name] for row in [*self.history, *self.measured.values()]))
