"""Serialization of federations to .npz files; see docs/data_files.md for the arrays."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedhead.core.components.parameters import check, from_mapping
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import Inputs, map_inputs
from fedhead.data.federation.federation_data import FederationData
from fedhead.data.inputs import arrays, labels, targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.input_spec import spec_inputs, transform_of
from fedhead.data.inputs.missing_values import MissingValues
from fedhead.data.inputs.table_columns import TableColumns
from fedhead.data.partitions import partition_file
from fedhead.data.sources.sample_file import SAVED, Contents, named_arrays, names_of

FORMAT = 2  # increase with every change of the arrays


def save(path: Path, federation: FederationData) -> None:
    """Write a federation to a file for `restore`."""
    owned = [] if federation.client_test is None or federation.client_test_from == "test" else federation.client_test
    site = np.full(len(federation.train.y), -1, np.int64)
    for indices in (federation.indices, owned, federation.validation or []):
        for k, samples in enumerate(indices):
            site[samples] = k
    assigned = federation.take(np.flatnonzero(site >= 0))
    names = federation.client_names or [str(k) for k in range(len(federation))]
    entries: dict[str, Any] = {
        SAVED: FORMAT,
        **_arrays("x", assigned.train.x),
        "y": assigned.train.y.numpy(),
        "site": site[site >= 0],
        "site_names": list(names),
        **_entries("layout", arrays.stored_layout(assigned.train.x)),
        "classes": federation.classes,
        "preparation": _preparation(federation),
        "title": federation.title,
        "partition": federation.partition,
        "objective": None if federation.objective == "multiclass" else federation.objective,
        "class_names": federation.class_names,
    }
    for name, data in (("test", federation.test), ("public", federation.public)):
        if data is not None:
            entries |= {**_arrays(f"x_{name}", data.x), f"y_{name}": data.y.numpy()}
    if assigned.client_test is not None:
        entries |= partition_file.pack(assigned.client_test, "client_test_indices", "client_test_ends")
        entries["client_test_from"] = assigned.client_test_from
    if assigned.validation is not None:
        entries |= partition_file.pack(assigned.validation, "validation_indices", "validation_ends")
    partition_file.write(path, entries)


def _arrays(key: str, x: Inputs) -> dict[str, Any]:
    """Return inputs as arrays of a file, named KEY, or KEY.NAME for named inputs."""
    return _entries(key, map_inputs(lambda t: t.numpy(), x))


def _entries(key: str, value: Any) -> dict[str, Any]:
    return {f"{key}.{name}": entry for name, entry in value.items()} if isinstance(value, dict) else {key: value}


def _preparation(federation: FederationData) -> str:
    """Serialize the transform, the fill values of missing values and the columns to JSON."""
    inputs = spec_inputs(federation.train.x, federation.transform)
    missing = {name: asdict(filled) for name, filled in federation.missing.items()}
    columns = None if federation.columns is None else federation.columns.to_json()
    return json.dumps({"inputs": inputs, "missing": missing, "columns": columns, "fitted": federation.fitted})


def restore(contents: Contents) -> dict[str, Any]:
    """Return the arguments of `Federation` from a file written by `save`."""
    arrays = contents.arrays
    try:
        if int(arrays[SAVED]) != FORMAT:
            raise ValueError("it is of another version: save it again")
        local, validation = (
            partition_file.unpack(arrays, f"{name}_indices", f"{name}_ends") if f"{name}_indices" in arrays else None
            for name in ("client_test", "validation")
        )
        preparation = json.loads(str(arrays["preparation"]))
        own_test = str(arrays.get("client_test_from", "train"))
        clients = len(arrays["site_names"])
        parts = {name: _samples(contents, name) for name in ("", "_test", "_public") if f"y{name}" in arrays}
        limit = len(parts["" if own_test == "train" else "_test"].y)
        partition_file.check_indices(local, limit, f"{contents.where}: its clients' test indices")
        partition_file.check_indices(validation, len(parts[""].y), f"{contents.where}: its validation indices")
        site = arrays["site"].copy()
        for apart in (local if own_test == "train" else None, validation):
            site[np.concatenate(apart or [np.zeros(0, np.int64)])] = -1
        return {
            "train": parts[""],
            "indices": [np.flatnonzero(site == k) for k in range(clients)],
            "classes": check("classes", int(arrays["classes"]), labels.Count),
            "test": parts.get("_test"),
            "public": parts.get("_public"),
            "client_test": local,
            "client_test_from": own_test,
            "validation": validation,
            "transform": transform_of(preparation["inputs"]),
            "class_names": contents.class_names,
            "client_names": names_of(arrays, "site_names"),
            "title": str(arrays["title"]),
            "partition": str(arrays["partition"]),
            "objective": contents.objective,
            "missing": {name: from_mapping(MissingValues, entries) for name, entries in preparation["missing"].items()},
            "columns": TableColumns.from_json(preparation["columns"]),
            "fitted": preparation["fitted"],
        }
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"{contents.where}: not a federation that fedhead wrote ({error})") from None


def _samples(contents: Contents, part: str) -> Samples:
    arrays = contents.arrays
    x = named_arrays(arrays, f"x{part}") if isinstance(contents.x, dict) else arrays[f"x{part}"]
    y, has_classes = arrays[f"y{part}"], targets.objective_of(contents.objective).has_classes
    if (y.dtype.name, y.ndim) != (("int64", 1) if has_classes else ("float32", 2)):
        raise ValueError(f"y{part} is {y.dtype} of shape {y.shape}")
    return Samples(map_inputs(torch.from_numpy, x), torch.from_numpy(y))
