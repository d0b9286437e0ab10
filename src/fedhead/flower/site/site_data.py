"""Data of a site: class folders, an .npz, a CSV of paths and labels, or a Python function."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from fedhead.core.components.loading import load_object
from fedhead.core.system.errors import BadInput, user_code
from fedhead.core.tree.inputs import shape_of
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs import labels, targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.conversion import samples
from fedhead.data.inputs.labels import Classes
from fedhead.data.inputs.missing_values import fill_inputs
from fedhead.data.inputs.named_inputs import prepare_like
from fedhead.data.inputs.table_columns import is_frame
from fedhead.data.inputs.table_schema import SUFFIXES, TableSchema
from fedhead.data.inputs.table_statistics import TableStatistics
from fedhead.data.partitions.allocation import Indices
from fedhead.data.sources import image_folders, sample_file
from fedhead.data.sources.image_folders import pictures
from fedhead.flower.wire.protocol import RunSpec
from fedhead.flower.wire.site_errors import SiteProblem

Source = str | tuple[str, ...]  # path, or file.py:function; paths of several tables


class ColumnNames(NamedTuple):
    """Names of a site's columns that differ from the schema's: the label's, and those that are left out."""

    label: str | None = None
    leave_out: tuple[str, ...] = ()


def federation(
    spec: RunSpec,
    number: int,
    data: Source,
    *,
    base: Path,
    test: Source | None = None,
    client_test: float | str | None = None,
    validation: float | None = None,
    drawn: tuple[int, int] | None = None,
    size: int | None = None,
    public: str | None = None,
    names: ColumnNames | None = None,
) -> Federation:
    """Return a federation with the samples of one site only, under its client number.

    `data` and `test` are paths relative to `base`, or `file.py:function` or `module:function`; `client_test` and
    `validation` are shares of the site's samples, drawn with the seed and client number of `drawn`; None: those of the
    run.
    """
    train, test_samples = load(data, spec, base, size, names)
    if test is not None:
        test_samples, _ = load(test, spec, base, size, names)
    if test_samples is not None and client_test is not None:
        raise BadInput(
            "a site's test samples come either from 'test' (or the data itself) or from 'client_test', not both"
        )
    shared = None if public is None else load(public, spec, base, size)[0]
    result = Federation(
        train,
        _alone(np.arange(len(train.y), dtype=np.int64), number, len(spec.sites)),
        spec.classes,
        transform=spec.transform(),
        class_names=spec.class_names,
        title=str(data),
        public=shared,
        objective=spec.objective,
        missing=spec.missing,
        columns=spec.columns,
    )
    split = _split(result, number, client_test, drawn or (int(spec.recipe["seed"]), number), validation)
    if test_samples is None:
        return split
    local = _alone(np.arange(len(test_samples.y), dtype=np.int64), number, len(spec.sites))
    return replace(split, test=test_samples, client_test=local, client_test_from="test")


def _split(
    whole: Federation,
    number: int,
    client_test: float | str | None,
    drawn: tuple[int, int],
    validation: float | None = None,
) -> Federation:
    """Hold out shares of the site's samples for testing and validation, drawn with a seed and a client number."""
    seed, place = drawn
    split = replace(whole, indices=_alone(whole.indices[number], place, place + 1)).with_client_test(client_test, seed)
    split = split.with_validation(validation, seed)
    training, local, held_out = (
        None if each is None else _alone(each[place], number, len(whole))
        for each in (split.indices, split.client_test, split.validation)
    )
    return replace(split, indices=training or [], client_test=local, validation=held_out)


def statistics(
    spec: RunSpec,
    number: int,
    data: Source,
    *,
    base: Path,
    client_test: float | str | None,
    drawn: tuple[int, int] | None,
    names: ColumnNames,
    minimum: int,
) -> TableStatistics:
    """Return the statistics of one site's table; the arguments are those of `federation`.

    They are of the rows without the test samples, with the validation samples, as in a simulation.
    """
    schema = _schema(spec)
    frame = table(data, spec, base, names, strict=True)
    has_classes = targets.objective_of(spec.objective).has_classes
    given = frame[schema.label].to_numpy()
    read: Any = labels.read(given, "y") if has_classes else targets.read(given, spec.objective)
    classes = Classes.find(read, schema.classes, None) if has_classes else Classes(1)
    encoded = classes.encode(read, f"column {schema.label!r}") if has_classes else read
    whole = Federation(
        Samples(torch.zeros(len(frame), 1), encoded),
        _alone(np.arange(len(frame), dtype=np.int64), number, len(spec.sites)),
        classes.count,
        objective=spec.objective,
    )
    indices = _split(whole, number, client_test, drawn or (int(spec.recipe["seed"]), number)).indices[number]
    return TableStatistics.of(frame, indices, schema, spec.preprocessing, minimum)


def share(whole: Federation, number: int) -> Federation:
    """Return the federation with the samples of one client only."""
    empty = np.zeros(0, np.int64)
    indices = whole.indices[number]
    if not len(indices):
        raise SiteProblem("no-samples", f"client {number} holds no training samples in this partition")
    local = empty if whole.client_test is None else whole.client_test[number]
    held_out = empty if whole.validation is None else whole.validation[number]
    parts, test = [indices, local if whole.client_test_from == "train" else empty, held_out], None
    ends = np.cumsum([0, *map(len, parts)])
    training, places, validation = (np.arange(begin, end, dtype=np.int64) for begin, end in itertools.pairwise(ends))
    if whole.client_test_from == "test" and whole.test is not None and len(local):
        test, places = whole.test.take(local), np.arange(len(local), dtype=np.int64)
    return replace(
        whole,
        train=whole.train.take(np.concatenate(parts)),
        test=test,
        indices=_alone(training, number, len(whole)),
        client_test=None if whole.client_test is None else _alone(places, number, len(whole)),
        validation=None if whole.validation is None else _alone(validation, number, len(whole)),
    )


def _alone(indices: Indices, number: int, clients: int) -> list[Indices]:
    return [indices if k == number else np.zeros(0, np.int64) for k in range(clients)]


def load(
    source: Source, spec: RunSpec, base: Path, size: int | None = None, names: ColumnNames | None = None
) -> tuple[Samples, Samples | None]:
    """Load samples, and test samples if the source has some, that match the run's spec."""
    if spec.table:
        columns, frame = spec.columns, table(source, spec, base, names or ColumnNames())
        if columns is None:
            raise SiteProblem("request", "the run's table is not fitted yet: the server asks in the wrong order")
        x = fill_inputs(torch.from_numpy(columns.encode(frame, str(source))), spec.missing)
        return _fit(x, frame[_schema(spec).label].to_numpy(), spec, str(source), "features"), None
    if not isinstance(source, str):
        raise BadInput(f"data {', '.join(source)}: a list is for tables with a schema; name one file or folder")
    path = _place(source, base)
    test: Any = None
    layout: Any = None
    if path.is_dir() or path.suffix == ".csv":
        return _checked(_images(path, spec, size), spec, source), None
    if path.suffix == ".npz":
        contents = sample_file.read_path(path, size, spec.recipe.get("encode"))
        x, test, layout = contents.x, contents.test, contents.layout
        y = contents.labels(named=spec.class_names is not None and targets.objective_of(spec.objective).has_classes)
    elif ":" in source and not path.exists():
        x, y, test = _function(source, base)
    else:
        raise BadInput(
            f"data {source!r}: {path} is not there; give a folder of class folders, an .npz or .csv file, "
            "module:function or file.py:function"
        )
    test = None if test is None else _fit(test[0], test[1], spec, f"{source}, test samples", layout)
    return _fit(x, y, spec, source, layout), test


def _place(source: str, base: Path) -> Path:
    """Return a source as a path with its folder resolved, as messages show it; a linked file keeps its own name."""
    path = base / os.path.expanduser(source)
    return path.parent.resolve() / path.name


def _schema(spec: RunSpec) -> TableSchema:
    schema = spec.schema
    if schema is None:
        raise SiteProblem("request", "the server asks for statistics of tables, and the run has no schema of such")
    return schema


def table(source: Source, spec: RunSpec, base: Path, names: ColumnNames, strict: bool = False) -> pd.DataFrame:
    """Read a site's CSV or Parquet files, or those of a folder, or call its function, which returns a data frame.

    With `strict` a name in `leave_out` that the table and the schema lack is refused: test samples may lack it.
    """
    listed = [source] if isinstance(source, str) else list(source)
    tables: Any = [_place(each, base) for each in listed]
    if len(tables) == 1 and tables[0].is_dir():
        tables = sorted(path for path in tables[0].iterdir() if path.suffix in SUFFIXES)
    if len(tables) == 1 and ":" in listed[0] and not tables[0].exists():
        tables = _call(listed[0], base)
        if not is_frame(tables):
            raise BadInput(f"data {source!r}: the function must return a data frame")
    frame = _schema(spec).table(tables, *names, spec.objective, strict)
    if frame.empty:
        raise BadInput(f"data {source!r} holds no samples: give at least one")
    return frame


def _fit(x: Any, y: Any, spec: RunSpec, source: str, stated: Any) -> Samples:
    """Convert samples to inputs of the run's model."""
    has_classes = targets.objective_of(spec.objective).has_classes
    read: Any = labels.read(y, "y") if has_classes else targets.read(y, spec.objective)
    if not len(read):
        raise BadInput(f"data {source!r} holds no samples: give at least one")
    x, layout = prepare_like(x, spec.blank(), stated or spec.recipe.get("layout"), "x")
    if not has_classes and read.shape[1] != spec.classes:
        raise BadInput(f"data {source!r}: y has {read.shape[1]} columns, the run is for {spec.classes}")
    known = Classes.known(read, spec.class_names, spec.classes) if has_classes else Classes(spec.classes)
    return _checked(samples(x, read, known, layout, ""), spec, source)


def _checked(samples: Samples, spec: RunSpec, source: str) -> Samples:
    if shape_of(samples.x) != (wanted := shape_of(spec.blank())):
        raise BadInput(
            f"data {source!r} holds samples of shape {shape_of(samples.x)}, the run is for {wanted}: "
            "bring them to that size (for image files: 'size' in site.yaml)"
        )
    return samples


def _images(path: Path, spec: RunSpec, size: int | None) -> Samples:
    """Read image files from class folders, or from the columns `path` and `label` of a CSV."""
    names = list(spec.class_names or map(str, range(spec.classes)))
    if path.is_dir():
        files = [(file, folder.name) for folder in image_folders.subfolders(path) for file in pictures(folder)]
        files.sort(key=lambda entry: names.index(entry[1]) if entry[1] in names else -1)
    else:
        try:
            table = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)[["path", "label"]].fillna("")
        except (OSError, ValueError, KeyError) as error:
            raise BadInput(f"data {str(path)!r} is no CSV file with the columns 'path' and 'label': {error}") from error
        files = [(path.parent / file, label) for file, label in table.itertuples(index=False)]
    for file, label in files:
        if label not in names:
            raise BadInput(
                f"data {str(path)!r}: {file.name} is of the class {label!r}, the run's are {', '.join(names)}"
            )
    if not files:
        raise BadInput(f"data {str(path)!r} holds no samples: give at least one")
    listed = [(file, names.index(label)) for file, label in files]
    channels = spec.shape[0] if len(spec.shape) == 3 else None
    return image_folders.decode_list(path if path.is_dir() else path.parent, listed, size, channels)


def _function(source: str, base: Path) -> tuple[Any, Any, Any]:
    """Return x, y and (x_test, y_test) or None from a function of the site, in the folder of site.yaml."""
    values = _call(source, base)
    if not isinstance(values, tuple) or len(values) not in (2, 4):
        raise BadInput(f"data {source!r}: the function must return (x, y) or (x, y, x_test, y_test)")
    return values[0], values[1], None if len(values) == 2 else (values[2], values[3])


def _call(source: str, base: Path) -> Any:
    function, _ = load_object(source, f"data {source!r}", [base], modules_beside=True)
    with user_code(f"data {source!r}"):
        return function()
