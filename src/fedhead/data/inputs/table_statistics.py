"""Statistics of a client's table, and the preprocessing that is fitted to the statistics of all clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedhead.core.components.parameters import from_mapping
from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.system.errors import BadInput, require
from fedhead.data.inputs.missing_values import MissingValues
from fedhead.data.inputs.table_columns import MOST, TableColumns
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.data.inputs.table_sums import BINS, FeatureSums, feature_sums, from_numbers, to_numbers

if TYPE_CHECKING:
    import pandas as pd

Count = Annotated[int, AtLeast(0), AtMost(2**53)]
Number = Annotated[float, AtLeast(-1e300), AtMost(1e300)]
LONGEST = 200  # characters of a category or class


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing that a run asks for.

    Args:
        missing: Whether empty cells are filled.
        normalize: Normalization; "standard" and "quantiles" are fitted.
    """

    missing: bool
    normalize: str | None

    @property
    def sums(self) -> bool:
        """True if sums of the features are needed."""
        return self.missing or self.normalize == "standard"


@dataclass(frozen=True)
class TableStatistics:
    """Statistics of one client's table: as few as the schema and the preprocessing need.

    Args:
        rows: Number of training rows.
        found: Categories by column; only None (if a cell is empty) where the schema lists the categories.
        classes: Labels in rising order; empty if the schema lists the classes.
        sums: Numbers of `to_numbers` by feature, over the training rows.
        histograms: Histograms by column of numbers, over the training rows.
    """

    rows: Count
    found: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    sums: dict[str, tuple[Count, Number, Number, Number, Number]] = field(default_factory=dict)
    histograms: dict[str, tuple[Count, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, frame: pd.DataFrame, rows: NDArray[np.int64], schema: TableSchema, wanted: Preprocessing, minimum: int = 1
    ) -> TableStatistics:
        """Compute the statistics of a table.

        Args:
            frame: Table, from `TableSchema.table`.
            rows: Training rows.
            schema: Schema of the table.
            wanted: Preprocessing.
            minimum: Smallest number of rows behind a category or a sum. Smaller classes are not named.

        Raises:
            BadInput: If there are fewer rows behind a category or a sum.
        """
        _check_counts(frame, rows, schema, wanted, minimum)
        found = schema.found(frame)
        local = schema.encoding([found], wanted.missing)
        x = torch.from_numpy(local.encode(frame))[rows]
        sums = dict(zip(local.names, feature_sums(x), strict=True)) if wanted.sums else {}
        if wanted.normalize != "standard":
            sums = {name: FeatureSums(feature.count, feature.total) for name, feature in sums.items()}
        named = {name: None if schema.columns[name].categories is None else () for name in found}
        counts = frame[schema.label].value_counts()
        return cls(
            rows=len(rows),
            found={
                name: tuple(value for value in values if value is None or named[name] is None)
                for name, values in found.items()
            },
            classes=() if schema.classes else tuple(sorted(map(str, counts.index[counts >= minimum]))),
            sums={name: tuple(to_numbers(feature)) for name, feature in sums.items()},  # type: ignore[misc]
            histograms={name: tuple(own) for name, own in local.histograms(x).items()}
            if wanted.normalize == "quantiles"
            else {},
        )

    @classmethod
    def read(cls, entries: Mapping[str, Any], schema: TableSchema) -> TableStatistics:
        """Read and validate the statistics of another machine, which may have sent anything.

        Raises:
            BadInput: If they are not statistics of such a table.
        """
        read = from_mapping(cls, entries, "entry")
        words = [value for values in (*read.found.values(), read.classes) for value in values if value is not None]
        limits = {name for name, column in schema.columns.items() if column.type == "number"}
        require(
            read.rows > 0
            and read.found.keys() == schema.columns.keys() - limits
            and all(len(values) <= MOST for values in (*read.found.values(), read.classes))
            and all(0 < len(word) <= LONGEST and word.isprintable() for word in words)
            and all(numbers[0] <= read.rows for numbers in read.sums.values())
            and read.histograms.keys() <= limits
            and all(len(counts) == BINS and sum(counts) <= read.rows for counts in read.histograms.values()),
            "they are not the statistics of a table with the run's schema",
        )
        return read


@dataclass(frozen=True)
class FittedTable:
    """Preprocessing of a table, fitted to the statistics of all clients.

    Args:
        columns: Encoding of the columns.
        missing: Fill values; None: empty cells are refused.
        scale: Mean and deviation of each feature; None: no fitted normalization.
        classes: Names of the classes.
    """

    columns: TableColumns
    missing: MissingValues | None
    scale: list[tuple[float, float]] | None
    classes: tuple[str, ...]

    @classmethod
    def fit(cls, schema: TableSchema, parts: Sequence[TableStatistics], wanted: Preprocessing) -> FittedTable:
        """Fit the preprocessing to the statistics of all clients.

        Raises:
            BadInput: If they are inconsistent.
        """
        columns = schema.encoding([part.found for part in parts], wanted.missing)
        rows, sums = sum(part.rows for part in parts), [FeatureSums() for _ in columns.names]
        for part in parts if wanted.sums else ():
            known = {name: from_numbers(numbers) for name, numbers in part.sums.items()}
            if odd := (known.keys() - set(columns.names)) | ({*columns.of_numbers} - known.keys()):
                raise BadInput(f"a site's statistics lack, or have besides the schema's, the feature {min(odd)!r}")
            absent = FeatureSums(part.rows)  # a category that the client does not have
            sums = [total + known.get(name, absent) for total, name in zip(sums, columns.names, strict=True)]
        missing = MissingValues.fit(sums, rows) if wanted.missing else None
        scale = None
        if wanted.normalize == "standard":
            filled = sums if missing is None else missing.filled(sums, rows)
            scale = [(feature.mean, feature.deviation) for feature in filled]
        elif wanted.normalize == "quantiles":
            every = [part.histograms for part in parts]
            counts = {name: [sum(own) for own in zip(*(p[name] for p in every), strict=True)] for name in every[0]}
            indicators = 0 if missing is None else len(missing.indicated)
            scale = columns.quantile_scale(counts) + [(0.0, 1.0)] * indicators
        found = sorted({word for part in parts for word in part.classes})
        return cls(columns, missing, scale, tuple(map(str, schema.classes or found)))


def _check_counts(
    frame: pd.DataFrame, rows: NDArray[np.int64], schema: TableSchema, wanted: Preprocessing, minimum: int
) -> None:
    """Check that at least `minimum` rows are behind each category that is named and each sum."""
    training = frame.iloc[rows]
    for name, column in schema.columns.items():
        counts: dict[Any, int] = {}
        if column.type == "category":
            tables = [frame] if column.categories is None else []
            for table in [*tables, *([training] if wanted.normalize == "standard" else [])]:
                counts |= table[name].value_counts().to_dict()
        elif wanted.sums or wanted.normalize == "quantiles":
            counts = {"": int(training[name].notna().sum())}
        for value, count in counts.items():
            what = f"the category {value!r}" if column.type == "category" else "values"
            require(
                count == 0 or count >= minimum,
                f"column {name!r} holds {what} in {count} rows, fewer than min_class_count {minimum}: merge or remove "
                "them, leave the column out (leave_out), or lower min_class_count",
            )
