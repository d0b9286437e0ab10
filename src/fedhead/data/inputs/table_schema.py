"""Schema of a table that several sites have: its label, and the type, unit and categories of each column."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedhead.core.components.parameters import from_mapping
from fedhead.core.system.errors import BadInput, collecting_errors, raise_first, require, unknown
from fedhead.core.system.special_files import read_text
from fedhead.core.system.yaml_text import read_yaml
from fedhead.data.inputs.table_columns import MOST, PLACES, TableColumns, is_frame, numbers, refuse, text, texts
from fedhead.data.inputs.targets import objective_of

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".parquet")
Categories = Mapping[str, Collection[str | None]]  # categories by column; None: some cells are empty


@dataclass(frozen=True)
class Column:
    """Schema of one column.

    Args:
        type: Kind of the values.
        unit: Unit of the numbers, for readers.
        range: Smallest and largest number that is possible; others are refused.
        categories: All categories, in order; None: those that the data has.
    """

    type: Literal["number", "category"] = "number"
    unit: str | None = None
    range: tuple[float, float] | None = None
    categories: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        number = self.type == "number"
        require(number or (self.range is None and self.unit is None), "range and unit are for the type number")
        require(not number or self.categories is None, "categories are for the type category: set type: category")
        require(self.range is None or self.range[0] < self.range[1], "range: the first number must be below the second")
        if self.categories is not None:
            require(len(set(self.categories)) == len(self.categories) > 0, "categories: give at least one, each once")

    def read(self, values: pd.Series[Any], name: str) -> pd.Series[Any]:
        """Return numbers as float64 and categories as texts, with NaN or None for empty cells.

        Args:
            values: Column of a table.
            name: Name of the column in error messages.

        Raises:
            BadInput: If a value is of another type, out of range or not listed.
        """
        if self.type == "number":
            return numbers(values, name, self.range, self.unit)
        words = texts(values)
        strange = words.notna() & ~words.isin(self.categories or words)
        refuse(words, strange, name, "which the schema does not list: correct it, or add it to the schema at all sites")
        return words


@dataclass(frozen=True)
class TableSchema:
    """Schema of a table.

    Args:
        label: Column of the labels.
        columns: Columns of the inputs, in the order of the features.
        classes: Names of the classes, in order; None: the labels that the data has, in rising order.

    >>> TableSchema.from_mapping({"label": "ill", "columns": {"age": {"unit": "years"}}}).columns["age"].unit
    'years'
    """

    label: str
    columns: Mapping[str, Column]
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require(self.columns, "columns: name at least one column of inputs")
        require(self.label not in self.columns, f"columns: {self.label!r} is the label; leave it out")

    @classmethod
    def from_mapping(cls, entries: Any, source: str = "schema") -> TableSchema:
        """Create a schema from a mapping, as in a YAML file.

        Raises:
            BadInput: If an entry is missing, unknown or invalid.
        """
        try:
            require(isinstance(entries, Mapping), "expected lines 'key: value'")
            given = entries.get("columns")
            require(isinstance(given, Mapping), "columns: name each column of inputs, as in 'age: {unit: years}'")
            columns: dict[str, Column] = {}
            for name, column in given.items():
                require(column is None or isinstance(column, Mapping), f"columns: {name}: expected {{type: …}}")
                try:
                    columns[str(name)] = from_mapping(Column, _with_texts(column or {}, "categories"))
                except BadInput as error:
                    raise BadInput(f"columns: {name}: {error}") from error
            others = {str(key): value for key, value in entries.items() if key != "columns"}
            return from_mapping(cls, _with_texts(others, "classes"), columns=columns)
        except BadInput as error:
            raise BadInput(f"{source}: {error}") from error

    @classmethod
    def read(cls, path: str | PathLike[str]) -> TableSchema:
        """Read a schema from a YAML file.

        Raises:
            BadInput: If it can't be read, or an entry is missing, unknown or invalid.
        """
        return cls.from_mapping(read_yaml(read_text(Path(path)), str(path)), str(path))

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON values, for `from_mapping`."""
        columns = {name: _without_none(asdict(column)) for name, column in self.columns.items()}
        return _without_none({"label": self.label, "columns": columns, "classes": self.classes})

    def difference(self, other: TableSchema) -> str | None:
        """Return the name of the first entry in which another schema differs; None if they are equal."""
        for name in ("label", "classes"):
            if getattr(self, name) != getattr(other, name):
                return name
        if list(self.columns) != list(other.columns):
            return "the names or the order of the columns"
        return next((f"the column {key!r}" for key, entry in self.columns.items() if entry != other.columns[key]), None)

    def permits(self, columns: TableColumns) -> bool:
        """Return whether an encoding is one of this schema: its columns with their types, categories and ranges."""
        categories = {name: columns.categories.get(name) or () for name in self.columns}
        try:
            encoding = self.encoding([categories], columns.missing)
            return columns == encoding and list(columns.categories) == list(encoding.categories)
        except BadInput:
            return False

    # -- tables -----------------------------------------------------------------------------------
    def table(
        self,
        source: Any,
        label: str | None = None,
        leave_out: Sequence[str] = (),
        objective: str = "multiclass",
        strict: bool = False,
    ) -> pd.DataFrame:
        """Read a table and check it against the schema.

        Args:
            source: A data frame, the path of a CSV or Parquet file, or a list of paths, whose rows are concatenated.
            label: Name of the label's column in the table; None: that of the schema.
            leave_out: Columns of the table that are not used. A column of the schema is then empty.
            objective: Objective of the labels: classes are texts, other targets numbers.
            strict: Whether to refuse a name in `leave_out` that neither the table nor the schema has.

        Returns:
            The columns of the schema, numbers as float64 and categories as texts, and the label. The index of a single
            file's table has the places of its rows, for error messages.

        Raises:
            BadInput: If a column is missing, unknown or of another type, or a number is out of range. Its notes are the
                other faults of the table.
        """
        import pandas as pd

        own_label = self.label if label is None else label
        sources = [source] if isinstance(source, str | PathLike) or is_frame(source) else list(source)
        as_written = {own_label, *(name for name, column in self.columns.items() if column.type == "category")}
        labels = Column("category", categories=self.classes) if objective_of(objective).has_classes else Column()
        require(own_label not in leave_out, f"leave_out: {own_label!r} is the label, which every row needs: remove it")
        parts, names, tables, errors = [], {*self.columns}, 0, list[BadInput]()
        for each in sources:
            where = "the table" if is_frame(each) else str(each)
            with collecting_errors(errors):
                frame = each if is_frame(each) else _read(Path(each), as_written)
                known = [str(name) for name in frame.columns]
                require(len(set(known)) == len(known), f"{where} has two columns of one name: rename one")
                names.update(known)
                tables += 1
                wanted = [own_label, *(name for name in self.columns if name not in leave_out)]
                missing = [repr(name) for name in wanted if name not in known]
                other = [name for name in known if name not in wanted and name not in leave_out]
                with collecting_errors(errors):
                    require(not missing, f"{where} has no column {', '.join(missing)}; it has {', '.join(known)}")
                with collecting_errors(errors):
                    fix = "drop them, or list them in leave_out of site.yaml"
                    require(not other, f"{where} has columns that are not in the schema, {', '.join(other)}: {fix}")
                checked = {}
                for name, column in self.columns.items():
                    if name in leave_out:
                        kind = object if column.type == "category" else np.float64
                        checked[name] = pd.Series(None, frame.index, kind)
                    elif name in known:
                        with collecting_errors(errors):
                            checked[name] = column.read(frame[name], f"{where}: column {name!r}")
                if own_label in known:
                    given, place = frame[own_label], f"{where}: column {own_label!r}"
                    refuse(given, given.isna(), place, "it must be a label: fill the cell, or drop the row")
                    checked[self.label] = labels.read(given, place)
                parts.append(pd.DataFrame(checked))
        strange = [name for name in leave_out if name not in names]
        if strict and strange and tables == len(sources) > 0:
            errors.append(unknown("column in leave_out", strange[0], names - {own_label}))
        raise_first(errors)
        require(parts, "no table is named: give at least one file")
        return pd.concat(parts, ignore_index=len(parts) > 1 or is_frame(sources[0]))

    def tables(
        self, source: Any, objective: str, leave_out: Sequence[str] = ()
    ) -> tuple[pd.DataFrame, pd.DataFrame | None]:
        """Read the training and, if there is one, the test table of a client: its data, or {"train": …, "test": …}."""
        parts = source if isinstance(source, Mapping) else {"train": source}
        require("train" in parts, f"a client has the parts {', '.join(map(str, parts))}: it needs a part 'train'")
        read = partial(self.table, leave_out=leave_out, objective=objective)
        return read(parts["train"]), None if parts.get("test") is None else read(parts["test"])

    def categories(self, frame: pd.DataFrame) -> dict[str, list[str | None]]:
        """Return the categories of a table's columns, in rising order; None is the last if some cells are empty."""
        return {
            name: [*sorted(frame[name].dropna().unique()), *([None] if frame[name].isna().any() else [])]
            for name, column in self.columns.items()
            if column.type == "category"
        }

    def encoding(self, categories: Sequence[Categories], missing: bool) -> TableColumns:
        """Return the encoding of the columns, given the categories of each client's table.

        Args:
            categories: Categories that each client has, from `categories`.
            missing: Whether cells may be empty.

        Raises:
            BadInput: If a column has no or too many categories.
        """
        kinds: dict[str, tuple[Any, ...] | None] = {}
        for name, column in self.columns.items():
            if column.type == "number":
                kinds[name] = None
                continue
            every = {value for table in categories for value in table[name]}
            values = column.categories or tuple(sorted(value for value in every if value is not None))
            require(
                0 < len(values) <= MOST, f"column {name!r} has {len(values)} categories: leave it out of the schema"
            )
            kinds[name] = (*values, *([None] if missing and None in every else []))
        ranges = {name: column.range for name, column in self.columns.items() if column.range is not None}
        return TableColumns(kinds, missing, ranges, by_schema=True)


def _read(path: Path, as_written: Collection[str]) -> pd.DataFrame:
    """Read a CSV or Parquet file, with columns of texts as they are written."""
    import pandas as pd

    require(os.path.exists(path), f"{path} is not there: correct the path, or put the table there")
    require(path.suffix in SUFFIXES, f"{path}: a table is a file that ends in {' or '.join(SUFFIXES)}")
    try:
        if path.suffix == ".csv":
            frame = pd.read_csv(path, dtype=dict.fromkeys(as_written, str), index_col=False)
            name = str(frame.columns[0])
            separated = len(frame.columns) == 1 and (";" in name or "\t" in name)
            require(not separated, f"{path} is not separated by commas: save it with ',' as the separator")
            return frame.set_index(pd.RangeIndex(2, len(frame) + 2, name=PLACES[0]))  # the header is line 1
        fix = f"{path}: this needs pyarrow: install it with pip install 'fedhead[parquet]'"
        require(importlib.util.find_spec("pyarrow") is not None, fix)
        frame = pd.read_parquet(path)
        return frame.set_index(pd.RangeIndex(1, len(frame) + 1, name=PLACES[1]))
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not in UTF-8: save it in this encoding ({error})") from error
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} can't be read: {error}") from error


def _with_texts(entries: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Convert the numbers of a list to texts: codes of categories and classes are names."""
    values = entries.get(key)
    listed = {key: list(map(text, values))} if isinstance(values, list | tuple) else {}
    return {**entries, **listed}


def _without_none(entries: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in entries.items()}
    return {key: value for key, value in plain.items() if value is not None}
