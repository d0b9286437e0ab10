"""Readers of data sets of PyTorch, Hugging Face and pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple

import numpy as np

from fedhead.core.system.errors import BadInput, require
from fedhead.data.inputs import encoders
from fedhead.data.inputs.table_columns import TableColumns, is_frame
from fedhead.data.inputs.tokenize import Tokenizer
from fedhead.data.sources import torch_sets


class Part(NamedTuple):
    """Arguments of `Federation.from_arrays` read from a data set."""

    x: Any
    y: Any
    layout: Any = None  # None: unknown
    names: Sequence[str] | None = None  # names of the classes
    groups: Any = None  # client of each sample
    group_names: Sequence[str] | None = None
    mark: Any = None  # 1 for test samples


def split(source: Any, noun: str) -> tuple[Any, Any]:
    """Return the training and the test part of a data set that may have both.

    Args:
        source: A `DatasetDict` or dictionary with "train" and "test", arrays (x, y, x_test, y_test), or one part.
        noun: Name of the data in error messages.

    Raises:
        BadInput: If a dictionary has no training part.
    """
    if isinstance(source, Mapping):
        require("train" in source, f"{noun} is a dictionary of {', '.join(map(str, source))}: it needs a part 'train'")
        return source["train"], source.get("test")
    if isinstance(source, tuple | list) and len(source) == 4:
        return tuple(source[:2]), tuple(source[2:])
    return source, None


@dataclass
class Reader:
    """Reader of data sets with one encoding; see `Federation.from_dataset` for the columns' roles.

    Args:
        training: Training data of each client, or of all, which determines the categories of tables.
        inputs: Column of the samples, or several.
        label: Column of the labels.
        encode: Encoding of texts.
        categories: Categories of columns of data frames.
        missing: Whether cells of a table may have no value.
        client: Column that names each sample's client.
        mark: Column that marks test samples.
    """

    training: InitVar[Sequence[Any]]
    inputs: str | Sequence[str] | None = None
    label: str = "label"
    encode: str | Tokenizer | None = None
    categories: Mapping[str, Sequence[Any]] | None = None
    missing: bool = False
    client: str | None = None
    mark: str | None = None

    def __post_init__(self, training: Sequence[Any]) -> None:
        self.names = [self.inputs] if isinstance(self.inputs, str) else list(self.inputs or ())
        require(self.inputs is None or self.names, "inputs is an empty list: name at least one column, or leave it out")
        require(self.label not in self.names, f"inputs: {self.label!r} is the column of the labels; leave it out")
        self.table: TableColumns | None = None
        frames = [source for source in training if is_frame(source)]
        if frames and self.encode is None:
            names = self.names or self._others(list(frames[0].columns))
            self.table = TableColumns.find(frames, names, self.categories, self.missing)
        elif self.categories is not None:
            raise BadInput("categories: these are for data frames, whose words are not read as text (encode)")

    def read(self, source: Any, noun: str, is_test: bool = False) -> Part:
        """Return the inputs and labels of a data set, or of a pair of arrays.

        Args:
            source: The data set.
            noun: Name of the data in error messages.
            is_test: Whether it is a test set, in which the columns `client` and `mark` are not required.

        Raises:
            BadInput: If it can't be read, or has no such columns.
        """
        if is_frame(source) or hasattr(source, "column_names"):
            return self._columns(source, noun, is_test)
        if isinstance(source, tuple | list) and len(source) == 2 and all(hasattr(each, "__len__") for each in source):
            return Part(*source)
        x, y = torch_sets.samples(source, self.label, self.names, noun)
        x, layout = self._inputs(x if isinstance(x, dict) else {"x": x})
        return Part(x, np.asarray([value.item() if hasattr(value, "item") else value for value in y]), layout)

    def _columns(self, source: Any, noun: str, is_test: bool) -> Part:
        frame = is_frame(source)
        known = [str(name) for name in (source.columns if frame else source.column_names)]

        def column(name: str) -> Any:
            require(name in known, f"{noun} has no column {name!r}; it has {', '.join(known)}")
            return source[name].to_numpy() if frame else list(source[name])

        def class_names(name: str | None) -> Sequence[str] | None:
            return getattr((getattr(source, "features", None) or {}).get(name), "names", None)

        y, names = column(self.label), class_names(self.label)
        groups, client_names = None, None
        if self.client is not None and not (is_test and self.client not in known):
            groups, client_names = column(self.client), class_names(self.client)
        mark = None if self.mark is None else np.asarray(column(self.mark))
        if frame and self.table is not None:
            x, layout = self.table.encode(source, noun), "features"
        else:
            x, layout = self._inputs({name: column(name) for name in self._chosen(known, noun)})
        return Part(x, y, layout, names, groups, client_names, mark)

    def _chosen(self, known: list[str], noun: str) -> list[str]:
        names = self.names or self._others(known)
        if self.inputs is None and len(names) != 1:
            fix = f"say which are inputs, as in inputs={known[0]!r} or inputs=[…]"
            raise BadInput(f"{noun} has the columns {', '.join(known)}: {fix}")
        return names

    def _others(self, known: Sequence[Any]) -> list[str]:
        """Return the columns that are neither label nor client nor test mark."""
        return [str(name) for name in known if name not in (self.label, self.client, self.mark)]

    def _inputs(self, columns: Mapping[str, Sequence[Any]]) -> tuple[Any, Any]:
        """Return columns as inputs, and the layout of those that were encoded."""
        inputs: dict[str, Any] = {}
        layout: dict[str, str] = {}
        for name, values in columns.items():
            if any(isinstance(value, str) for value in values):
                require(
                    self.encode is not None,
                    f"{name!r} holds texts: give encode=tokenizer (any function from a text to its token ids), or an "
                    "encoder such as encode='hashing(2048)'",
                )
                x, kind = encoders.encode_texts(_texts(values, name), self.encode)
                if isinstance(x, Mapping):
                    require(
                        len(columns) == 1,
                        f"encode: the tokenizer returns {', '.join(x)}, and there are other inputs beside {name!r}: "
                        "tokenize before, as in dataset.map(…), and name the columns in inputs=[…]",
                    )
                    return dict(x), kind
                layout[name] = kind
            else:
                x = stack(values)
            inputs[name] = x
        if len(inputs) == 1 and (self.inputs is None or isinstance(self.inputs, str)):
            return next(iter(inputs.values())), next(iter(layout.values()), None)
        return inputs, layout


def _texts(values: Sequence[Any], name: str) -> list[str]:
    """Return a column of texts, or raise `BadInput` if a cell holds something else."""
    others = [(row, type(value).__name__) for row, value in enumerate(values) if not isinstance(value, str)]
    for row, kind in others[:1]:
        raise BadInput(f"column {name!r} holds {kind} in row {row}, others texts: fill it, or leave the sample out")
    return list(values)


def stack(samples: Sequence[Any]) -> Any:
    """Stack samples (tensors, arrays, lists or PIL images) to one array; those that differ in length stay a list."""
    arrays = [np.asarray(s) for s in samples]
    shapes = {s.shape for s in arrays}
    if len(shapes) <= 1:
        return np.stack(arrays) if arrays else np.zeros(0)
    sizes = {s[1:] for s in shapes}
    images = any(hasattr(s, "getbands") for s in samples)  # PIL images, which are not padded
    if len(sizes) > 1 or len(next(iter(shapes))) not in (1, 2) or images:
        examples = ", ".join(str(s) for s in sorted(shapes)[:3])
        raise BadInput(f"samples differ in shape ({examples} …): resize them first")
    return arrays
