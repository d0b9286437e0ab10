"""Numeric encoding of data frames: numbers are unchanged, categories are one-hot encoded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.components.parameters import from_mapping
from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.log import logger
from fedhead.data.inputs.table_sums import FeatureSums, histogram, quantile_scale

if TYPE_CHECKING:
    import pandas as pd

MOST = 1000  # maximum number of categories of one column: more are texts or identifiers
TEXTS = 20  # a column of more categories, most of them unique, looks like texts or identifiers
PLACES = ("line", "row")  # names of the index of a CSV file's table, which counts lines, and of a Parquet file's
_WHOLE = re.compile(r"^(-?\d+)\.0+$", re.ASCII)


@dataclass(frozen=True)
class TableColumns:
    """Encoding of a data frame's columns as features, the same for every client and for new data.

    A column of numbers or booleans is one feature. A column of words or of pandas' type `category` is one feature per
    category, which is 1 where the row has that category (one-hot).

    Args:
        categories: Categories of each column, in order; None for a column of numbers. The category None stands for
            empty cells.
        missing: Whether cells may be empty. An empty number is NaN. An empty category is 0 in all features of its
            column, unless None is one of the categories.
        ranges: Smallest and largest possible value of columns of numbers, if a schema states them.
        by_schema: Whether a schema lists the columns: categories are then texts, and a column that a table lacks is
            empty if cells may be empty.

    >>> import pandas as pd
    >>> columns = TableColumns.find([pd.DataFrame({"age": [61, 48], "smoker": ["yes", "no"]})])
    >>> columns.names, columns.encode(pd.DataFrame({"smoker": ["no"], "age": [50]})).tolist()
    (('age', 'smoker=no', 'smoker=yes'), [[50.0, 1.0, 0.0]])
    """

    categories: Mapping[str, tuple[Any, ...] | None]
    missing: bool = False
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    by_schema: bool = False

    @classmethod
    def find(
        cls,
        frames: Sequence[pd.DataFrame],
        inputs: Sequence[str] | None = None,
        categories: Mapping[str, Sequence[Any]] | None = None,
        missing: bool = False,
    ) -> TableColumns:
        """Find the columns' kinds and categories in training data.

        Args:
            frames: The training data of each client, or of all.
            inputs: The columns to use; None for all.
            categories: All categories of some columns, if the data may not contain all of them, or if the numbers of a
                column are codes. By default those of pandas' type `category`, otherwise the sorted values.
            missing: Whether cells may be empty.

        Returns:
            The columns.

        Raises:
            BadInput: If a column is missing, or is neither numbers nor categories.
        """
        given = dict(categories or {})
        names = [str(name) for name in frames[0].columns] if inputs is None else list(inputs)
        for name in given:
            require(name in names, f"categories: {name!r} is none of the columns {', '.join(names)}")
        require(names, "the table has no columns of inputs besides label, client and test mark: give some")
        kinds = {
            name: _categories(name, [_column(f, name) for f in frames], given.get(name), missing) for name in names
        }
        for name, values in kinds.items():
            if values is not None:
                rows = sum(map(len, frames))
                if len(values) > max(TEXTS, rows / 2) and name not in given:
                    logger.warning(
                        "column %r has %d different values in %d rows, and becomes as many features: leave it out by "
                        "inputs=[…], or read it as text by encode=…",
                        name,
                        len(values),
                        rows,
                    )
                logger.info("column %s becomes %d columns, one per category", name, len(values))
        return cls(kinds, missing)

    @classmethod
    def from_json(cls, record: Mapping[str, Any] | None) -> TableColumns | None:
        """Return the columns from the result of `to_json`; None without columns.

        Args:
            record: Result of `to_json`, or None.

        Returns:
            The columns.
        """
        return None if record is None else from_mapping(cls, record)

    def to_json(self) -> dict[str, Any]:
        """Return the columns as JSON values."""
        kinds = {
            name: None if values is None else [v.item() if isinstance(v, np.generic) else v for v in values]
            for name, values in self.categories.items()
        }
        ranges = {name: list(limits) for name, limits in self.ranges.items()}
        record = {"categories": kinds, "missing": self.missing, "ranges": ranges}
        return record | ({"by_schema": True} if self.by_schema else {})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features: COLUMN, or COLUMN=CATEGORY."""
        return tuple(
            name if value is _NUMBER else f"{name} missing" if value is None else f"{name}={value}"
            for name, values in self.categories.items()
            for value in ((_NUMBER,) if values is None else values)
        )

    @property
    def of_numbers(self) -> list[str]:
        """Names of the columns of numbers."""
        return [name for name, values in self.categories.items() if values is None]

    def sums_of_numbers(self, sums: Sequence[FeatureSums], rows: int) -> list[FeatureSums]:
        """Return sums of features in which those of categories are 0: these are neither filled nor scaled.

        Args:
            sums: Sums of all features.
            rows: Number of samples behind them.

        Returns:
            Sums of each feature.
        """
        numbers, known = set(self.of_numbers), self.names
        categories = {place for place, name in enumerate(known) if name not in numbers}
        return [FeatureSums(rows) if place in categories else entry for place, entry in enumerate(sums)]

    def histograms(self, x: Tensor) -> dict[str, list[int]]:
        """Return the histograms of the columns of numbers.

        Args:
            x: Encoded table, [N, features].

        Returns:
            Counts of each bin by the name of the column.

        Raises:
            BadInput: If the range of such a column is not known.
        """
        counts = {}
        for name in self.of_numbers:
            require(name in self.ranges, f"normalize: quantiles needs the range of {name!r}: state it in the schema")
            counts[name] = histogram(x[:, self.names.index(name)], self.ranges[name])
        return counts

    def quantile_scale(self, counts: Mapping[str, Sequence[int]]) -> list[tuple[float, float]]:
        """Return the middle and half the distance of each feature's quantiles; categories are not scaled.

        Args:
            counts: Histograms of the columns of numbers.

        Returns:
            Shift and scale of each feature; 0 and 1 for those of categories.
        """
        known = {name: quantile_scale(histogram, self.ranges[name]) for name, histogram in counts.items()}
        return [known.get(name, (0.0, 1.0)) for name in self.names]

    def encode(self, frame: pd.DataFrame, noun: str = "the table") -> NDArray[np.float32]:
        """Return the features of a data frame, [rows, features].

        Args:
            frame: Data frame with these columns, in any order; others are ignored.
            noun: Name of the data in error messages.

        Returns:
            The features.

        Raises:
            BadInput: If a column is missing, has a category that the training data does not have, or a number is out
                of the schema's range.
        """
        import pandas as pd

        parts = [np.zeros((len(frame), 0), np.float32)]
        for name, values in self.categories.items():
            if self.by_schema and self.missing and name not in frame.columns:
                logger.warning("%s has no column %r: its cells count as empty", noun, name)
                column = pd.Series(None, frame.index, object)
            else:
                column = _column(frame, name, noun)
            if values is None:
                read = numbers(column, f"{noun}: column {name!r}", self.ranges.get(name))
                parts.append(read.to_numpy(np.float32)[:, None])
            else:
                parts.append(self._one_hot(name, column, values, noun))
        return np.concatenate(parts, 1)

    def _one_hot(self, name: str, column: pd.Series[Any], values: tuple[Any, ...], noun: str) -> NDArray[np.float32]:
        import pandas as pd

        empty = column.isna().to_numpy()
        categories = [value for value in values if value is not None]
        known = texts(column) if self.by_schema else column.astype(object)
        codes = pd.Index(categories, dtype=object).get_indexer_for(known)
        if not self.missing and empty.any():
            raise BadInput(
                f'{noun}: column {name!r} has no value in {_place(column, empty)}: fill it, or give missing="mean", '
                "for which this is a category"
            )
        fix = "list all categories in the schema" if self.by_schema else f"give categories={{{name!r}: […]}}"
        refuse(column, ~empty & (codes < 0), f"{noun}: column {name!r}", f"which is not a category of the run: {fix}")
        codes[empty] = values.index(None) if None in values else -1
        one_hot: NDArray[np.bool_] = codes[:, None] == np.arange(len(values))
        return one_hot.astype(np.float32)


_NUMBER = object()  # placeholder category of numeric columns


def is_frame(source: Any) -> bool:
    """Return whether something is a pandas data frame, without importing pandas."""
    return type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns")


def numbers(
    column: pd.Series[Any], name: str, limits: tuple[float, float] | None = None, unit: str | None = None
) -> pd.Series[float]:
    """Return a column of finite numbers and empty cells as float64.

    Args:
        column: The column.
        name: Name of the column in error messages.
        limits: Smallest and largest possible number.
        unit: Unit of the numbers in error messages.

    Raises:
        BadInput: If a value is not such a number.
    """
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce").astype(np.float64)
    low, high = limits or (-np.inf, np.inf)
    words = f" in {unit}" if unit else ""
    refuse(column, (values.isna() & column.notna()) | np.isinf(values), name, f"it must be a number{words}")
    refuse(column, (values < low) | (values > high), name, f"it must be between {low:g} and {high:g}{words}")
    return values


def texts(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return categories or labels as texts, empty cells unchanged; whole numbers are written as integers.

    >>> import pandas as pd
    >>> texts(pd.Series([1.0, 2.0])).tolist(), texts(pd.Series(["1.0", "I", "1.5"])).tolist()
    (['1', '2'], ['1', 'I', '1.5'])
    """
    import pandas as pd

    if pd.api.types.is_float_dtype(column) and (column.dropna() % 1 == 0).all():
        column = column.astype("Int64")
    return column.astype(object).map(text, na_action="ignore").where(column.notna(), None)


def text(value: Any) -> str:
    """Return a category or label as text, without the decimals of a whole number such as 1.0."""
    return _WHOLE.sub(r"\1", str(value))


def refuse(column: pd.Series[Any], wrong: Any, name: str, reason: str) -> None:
    """Raise `BadInput` with the first value of a column for which an array of booleans is true."""
    if wrong.any():
        value = column.astype(object).iloc[int(np.argmax(wrong))]
        raise BadInput(f"{name} holds {value!r} in {_place(column, wrong)}, {reason}")


def _place(column: pd.Series[Any], wrong: Any) -> str:
    """Return the first place where an array of booleans is true: the line or row of a file, else the position."""
    row, index = int(np.argmax(wrong)), column.index
    return f"{index.name} {index[row]}" if index.name in PLACES else f"row {row}"


def _column(frame: pd.DataFrame, name: str, noun: str = "the table") -> pd.Series[Any]:
    require(name in frame.columns, f"{noun} has no column {name!r}; it has {', '.join(map(str, frame.columns))}")
    column = frame[name]
    require(column.ndim == 1, f"{noun} has two columns of the name {name!r}: rename one")
    return column


def _categories(
    name: str, columns: Sequence[pd.Series[Any]], given: Sequence[Any] | None, missing: bool
) -> tuple[Any, ...] | None:
    """Return the categories of a column over all clients, or None for numbers."""
    import pandas as pd

    full = [column for column in columns if len(column)] or list(columns)
    known = (str, int, float, np.number, np.bool_)
    if given is not None:
        values = list(dict.fromkeys(given))
    elif all(isinstance(column.dtype, pd.CategoricalDtype) for column in full):
        values = list(dict.fromkeys(value for column in full for value in column.cat.categories))
    elif all(_is_numeric(column) or column.isna().all() for column in full):
        return None  # numbers or booleans
    else:
        every = [value for column in full for value in column.dropna().tolist()]
        if strange := [value for value in every if not isinstance(value, known)]:
            raise BadInput(
                f"column {name!r} holds {type(strange[0]).__name__} such as {str(strange[0])!r}: give numbers or "
                "categories, or leave it out by inputs=[…]"
            )
        values = list(dict.fromkeys(every))
        if len({isinstance(value, str) for value in values}) > 1:
            raise BadInput(f"column {name!r} holds both words and numbers: give one kind")
        values.sort()
    require(
        len(values) <= MOST,
        f"column {name!r} has {len(values):,} different values, more than {MOST:,} categories: leave it out by "
        "inputs=[…], or read it as text by encode=…",
    )
    return (*values, *([None] if missing and any(column.isna().any() for column in full) else []))


def _is_numeric(column: pd.Series[Any]) -> bool:
    import pandas as pd

    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column)
