"""Statistics of a client's table, and the preprocessing that is fitted to the statistics of all clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

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
from fedhead.data.transforms.augment import Transform

if TYPE_CHECKING:
    import pandas as pd

Count = Annotated[int, AtLeast(0), AtMost(2**53)]
Number = Annotated[float, AtLeast(-1e300), AtMost(1e300)]
Scale = list[tuple[float, float]]  # shift and scale of each feature
FittedNumbers = tuple[MissingValues | None, Scale | None]
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

    @property
    def any(self) -> bool:
        """True if anything is fitted to the numbers."""
        return self.sums or self.normalize == "quantiles"


@dataclass(frozen=True)
class TableStatistics:
    """Statistics of one client's table: as few as the schema and the preprocessing need.

    Args:
        rows: Number of training rows.
        categories: Categories by column, and None if a cell is empty; only None where the schema lists the categories.
        classes: Labels in rising order; empty if the schema lists the classes.
        sums: Numbers of `to_numbers` by column of numbers, over the training rows.
        histograms: Histograms by column of numbers, over the training rows.
    """

    reveals: ClassVar[Mapping[str, str]] = {  # sentence about each entry, for `fedhead wire`
        "rows": "number of training rows",
        "categories": "categories that enough rows have, if the schema lists none; whether cells are empty",
        "classes": "names of the classes that enough rows have",
        "sums": "number of values, their mean, and with normalize=standard their deviation",
        "histograms": "distribution of the values, an outlier to 1/256 of the range",
    }
    rows: Count
    categories: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
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
            minimum: Smallest number of rows behind a sum, a category or a class. Smaller categories and classes are not
                named: the table can be encoded only if another client names them.

        Raises:
            BadInput: If a category is not in the schema's list, or there are fewer rows behind a sum.
        """
        categories = schema.categories(frame)
        local = schema.encoding([categories], wanted.missing)
        x = torch.from_numpy(local.encode(frame))[rows]
        sums = {name: part for name, part in zip(local.names, feature_sums(x), strict=True) if name in local.of_numbers}
        for name, part in sums.items() if wanted.any else ():
            require(
                part.count == 0 or part.count >= minimum,
                f"column {name!r} has values in {part.count} rows, fewer than min_class_count {minimum}, so their sum "
                "is not sent: leave the column out here (leave_out), or lower min_class_count",
            )
        if wanted.normalize != "standard":
            sums = {name: FeatureSums(part.count, part.total) for name, part in sums.items()}
        unlisted = {name for name in categories if schema.columns[name].categories is None}
        return cls(
            rows=len(rows),
            categories={
                name: (
                    *(_large(frame[name], minimum) if name in unlisted else ()),
                    *([None] if None in values else []),
                )
                for name, values in categories.items()
            },
            classes=() if schema.classes else _large(frame[schema.label], minimum),
            sums={name: to_numbers(part) for name, part in sums.items()} if wanted.sums else {},
            histograms={name: tuple(part) for name, part in local.histograms(x).items()}
            if wanted.normalize == "quantiles"
            else {},
        )

    @classmethod
    def read(cls, entries: Mapping[str, Any], schema: TableSchema) -> TableStatistics:
        """Read and validate the statistics that another machine has sent.

        Raises:
            BadInput: If they are not statistics of such a table.
        """
        read = from_mapping(cls, entries, "entry")
        words = [value for values in (*read.categories.values(), read.classes) for value in values if value is not None]
        numbers = {name for name, column in schema.columns.items() if column.type == "number"}
        require(
            read.rows > 0
            and read.categories.keys() == schema.columns.keys() - numbers
            and all(len(values) <= MOST for values in (*read.categories.values(), read.classes))
            and all(0 < len(word) <= LONGEST and word.isprintable() for word in words)
            and read.sums.keys() | read.histograms.keys() <= numbers
            and all(values[0] <= read.rows for values in read.sums.values())
            and all(len(counts) == BINS and sum(counts) <= read.rows for counts in read.histograms.values()),
            "they are not the statistics of a table with the run's schema",
        )
        return read


def fit_numbers(
    columns: TableColumns | None,
    sums: Sequence[FeatureSums],
    rows: int,
    histograms: Mapping[str, Sequence[int]],
    wanted: Preprocessing,
) -> FittedNumbers:
    """Fit fill values and normalization to sums over the clients, at sites and in simulation.

    Args:
        columns: Encoding of the table, whose categories are neither filled nor scaled; None: all features are numbers.
        sums: Sums of each feature.
        rows: Number of rows behind them.
        histograms: Histograms by column, for normalize=quantiles.
        wanted: Preprocessing.

    Returns:
        Fill values, and shift and scale of each feature and of each indicator; None: not wanted.
    """
    if columns is not None:
        sums = columns.sums_of_numbers(sums, rows)
    missing = MissingValues.fit(sums, rows) if wanted.missing else None
    if wanted.normalize == "standard":
        filled = sums if missing is None else missing.filled(sums, rows)
        return missing, [(feature.mean, feature.deviation) for feature in filled]
    if wanted.normalize == "quantiles" and columns is not None:
        indicators = () if missing is None else missing.indicated
        return missing, columns.quantile_scale(histograms) + [(0.0, 1.0)] * len(indicators)
    return missing, None


@dataclass(frozen=True)
class FittedTable:
    """Preprocessing of a table, fitted to the statistics of all clients.

    Args:
        columns: Encoding of the columns.
        missing: Fill values; None: empty cells are refused.
        transform: Normalization of the features.
        classes: Names of the classes.
    """

    columns: TableColumns
    missing: MissingValues | None
    transform: Transform
    classes: tuple[str, ...]

    @property
    def features(self) -> int:
        """Number of features, with the indicators of missing values."""
        return len(self.columns.names) + (0 if self.missing is None else len(self.missing.indicated))

    @classmethod
    def fit(cls, schema: TableSchema, parts: Sequence[TableStatistics], wanted: Preprocessing) -> FittedTable:
        """Fit the preprocessing to the statistics of all clients.

        Raises:
            BadInput: If they are inconsistent.
        """
        columns = schema.encoding([part.categories for part in parts], wanted.missing)
        numbers, quantiles = set(columns.of_numbers), wanted.normalize == "quantiles"
        asked = (numbers if wanted.sums else set(), numbers if quantiles else set())
        if any((set(part.sums), set(part.histograms)) != asked for part in parts):
            raise BadInput("a site's statistics are not those that were asked for")
        sums = [
            sum((from_numbers(part.sums[name]) for part in parts if name in part.sums), FeatureSums())
            for name in columns.names
        ]
        histograms = {
            name: [sum(bins) for bins in zip(*(p.histograms[name] for p in parts), strict=True)] for name in asked[1]
        }
        missing, scale = fit_numbers(columns, sums, sum(part.rows for part in parts), histograms, wanted)
        if scale is None:
            transform = Transform().replace(normalize=wanted.normalize)
        else:
            mean, deviation = zip(*scale, strict=True)
            transform = Transform(mean, deviation)
        words = sorted({word for part in parts for word in part.classes})
        return cls(columns, missing, transform, tuple(map(str, schema.classes or words)))


def _large(column: pd.Series[Any], minimum: int) -> tuple[str, ...]:
    """Return the values of a column that at least `minimum` rows have, in rising order."""
    counts = column.value_counts()
    return tuple(sorted(map(str, counts.index[counts >= minimum])))
