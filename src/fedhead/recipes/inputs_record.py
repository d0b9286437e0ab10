"""Stored input spec of a run, with which models are built and used without the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from fedhead.core.components.parameters import from_mapping
from fedhead.core.tree.inputs import map_inputs
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs import targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.input_spec import blank_of, spec_inputs, transform_of
from fedhead.data.inputs.missing_values import MissingValues
from fedhead.data.inputs.table_columns import TableColumns
from fedhead.engine.experiment.experiment import InputSpec


def describe(federation: Federation) -> dict[str, Any]:
    """Return shape, dtype, columns, classes and preprocessing of a federation's samples as JSON values."""
    x = federation.train.x
    return {
        **spec_inputs(x, federation.transform),
        "dtype": None if isinstance(x, dict) else str(x.dtype).removeprefix("torch."),
        "classes": federation.classes,
        "objective": federation.objective,
        "class_names": None if federation.class_names is None else list(federation.class_names),
        **({"missing": {name: asdict(gap) for name, gap in federation.missing.items()}} if federation.missing else {}),
        **({} if federation.columns is None else {"columns": federation.columns.to_json()}),
    }


def inputs(record: Mapping[str, Any]) -> InputSpec:
    """Return the input spec of a record."""
    return InputSpec.of(blank(record, 1))


def blank(record: Mapping[str, Any], clients: int) -> Federation:
    """Return a federation without samples that has the run's input spec."""
    x = map_inputs(lambda t: t[:0], blank_of(record))
    nothing = [np.zeros(0, np.int64) for _ in range(clients)]
    classes, objective = int(record["classes"]), record.get("objective", "multiclass")
    data = Samples(x, targets.blank(0, classes, objective))
    missing = {name: from_mapping(MissingValues, rule) for name, rule in record.get("missing", {}).items()}
    return Federation(
        data,
        nothing,
        classes,
        transform=transform_of(record),
        class_names=record["class_names"],
        objective=objective,
        missing=missing,
        columns=TableColumns.from_json(record.get("columns")),
    )
