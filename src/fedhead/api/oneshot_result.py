"""What `fedhead.oneshot` returns: heads on the same features, as a table, a figure, CSV and JSON."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from fedhead.api.result import Result
from fedhead.core.system import html
from fedhead.data.federation.federation import Federation
from fedhead.report.text_table import TextTable

COLUMNS = ("head", "accuracy", "pooled", "f1", "worst_client", "bytes_per_client", "seconds", "note")


@dataclass(frozen=True)
class OneShot:
    """Heads on the same features: what each reaches, and what it costs.

    Attributes:
        rows: One per head: `accuracy` in per cent, `pooled` (that of the same head where all features are in one
            place), macro-averaged `f1`, `worst_client` (the lowest accuracy of a client, in per cent),
            `bytes_per_client` that each sends, and `seconds`; `note` says why a head has no numbers.
        features: The federation of features.
        feature_seconds: Seconds that the features took.
        result: The run without rounds that computed the heads, for `result.module(stage="ridge")`.
        title: What was run.
    """

    rows: list[dict[str, Any]]
    features: Federation
    feature_seconds: float
    result: Result | None
    title: str

    def __str__(self) -> str:
        """Return the table as Markdown."""
        return self.table().markdown()

    def _repr_html_(self) -> str:
        table = self.table()
        return html.table(table.title, list(table.head), [list(row) for row in table.body])

    def table(self) -> TextTable:
        """Return the rows as a table of texts."""
        head = ["head", "accuracy %", "pooled %", "macro-F1", "worst client %", "kB per client", "seconds"]
        body = []
        for row in self.rows:
            if row["accuracy"] is None:
                body.append([row["head"], "–", "–", "–", "–", "–", row["note"]])
                continue
            numbers = [_text(row["accuracy"], 2), _text(row["pooled"], 2), _text(row["f1"], 4)]
            more = [_text(row["worst_client"], 2), f"{row['bytes_per_client'] / 1e3:,.1f}", _text(row["seconds"], 2)]
            body.append([row["head"], *numbers, *more])
        return TextTable(self.title, head, body)

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw the accuracy against the bytes that a client sends.

        Args:
            path: File to write, .png, .svg or .pdf.
        """
        from fedhead.report.figures.bytes_plot import accuracy_by_bytes
        from fedhead.report.style import save

        there = [row for row in self.rows if row["accuracy"] is not None]
        points = [(row["head"], row["bytes_per_client"], row["accuracy"]) for row in there]
        save(accuracy_by_bytes(points), Path(path))

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write the rows to a CSV file.

        Args:
            path: The file.
        """
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)

    def to_json(self) -> str:
        """Return the rows, and the seconds of the features, as JSON."""
        return json.dumps({"title": self.title, "feature_seconds": self.feature_seconds, "heads": self.rows})


def _text(value: float | None, digits: int) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"
