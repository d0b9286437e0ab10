"""Preprocessing of the sites' tables, fitted to their statistics in one exchange before the first round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

from fedhead.core.system.errors import BadInput
from fedhead.data.inputs import targets
from fedhead.data.inputs.input_spec import describe_transform
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.data.inputs.table_statistics import FittedTable, TableStatistics
from fedhead.flower.server.connections import SiteConnections
from fedhead.flower.wire.protocol import Response


class TableFit(SiteConnections):
    """Exchange of the statistics of the sites' tables."""

    kind = "statistics"

    @cached_property
    def schema(self) -> TableSchema:
        """Schema of the tables."""
        return TableSchema.from_mapping(self.spec.table["schema"])

    def entries(self) -> dict[str, Any]:
        """Ask the sites for statistics, and return the fitted entries of the run's specification.

        Raises:
            FedheadError: If fewer sites than the quorum answer.
            BadInput: If the statistics are inconsistent.
        """
        present = [self.spec.sites[k] for k in self._gather()]
        parts = [self._read(self.nodes.hellos[name]) for name in present]
        fitted, rows = FittedTable.fit(self.schema, parts, self.spec.preprocessing), sum(part.rows for part in parts)
        self.log(f"tables of {', '.join(present)} with {rows} rows: {fitted.features} features")
        if counts := Counter(name for part in parts for name in part.classes):
            named = ", ".join(f"{name} {counts[name]}" for name in fitted.classes)
            self.log(f"classes, with the number of sites that name each: {named}")
        has_classes = targets.objective_of(self.spec.objective).has_classes
        if has_classes and len(fitted.classes) < 2:
            raise BadInput("the sites' labels are of fewer than 2 classes with enough samples: list them in the schema")
        return entries(
            {
                "classes": len(fitted.classes) if has_classes else 1,
                "class_names": list(fitted.classes) if has_classes else None,
                "shape": [fitted.features],
                "columns": fitted.columns.to_json(),
                "missing": {} if fitted.missing is None else {"": asdict(fitted.missing)},
                **describe_transform(fitted.transform),
            },
            self.spec.table,
        )

    def _admit(self, response: Response) -> None:
        self._read(response)

    def _read(self, response: Response) -> TableStatistics:
        return TableStatistics.read(response.statistics, self.schema)


def entries(inputs: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fitted entries of a specification from a record of its inputs, as in a run folder."""
    fitted = {"columns": inputs["columns"], "missing": inputs.get("missing", {}).get("")}
    names = ("classes", "class_names", "shape", "mean", "std")
    return {**{name: inputs[name] for name in names}, "table": {**table, **fitted}}
