"""Record of a run's inputs, stored in its folder: models can be built and asked without the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from fedhead.core.components.parameters import from_mapping
from fedhead.core.tree.inputs import blank as one_blank
from fedhead.core.tree.inputs import map_inputs, model_types, shape_of
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs import targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.input_spec import NamedInput, spec_inputs
from fedhead.data.inputs.missing_values import MissingValues
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import AnyTransform, NamedTransforms
from fedhead.engine.experiment.experiment import InputSpec


def describe(federation: Federation) -> dict[str, Any]:
    """Return shape, type, classes and normalization of a federation's samples, as JSON can hold them."""
    x = federation.train.x
    return {
        **spec_inputs(x, federation.transform),
        "dtype": None if isinstance(x, dict) else str(x.dtype).removeprefix("torch."),
        "classes": federation.classes,
        "objective": federation.objective,
        "names": None if federation.names is None else list(federation.names),
        **({"missing": {name: asdict(one) for name, one in federation.missing.items()}} if federation.missing else {}),
    }


def inputs(record: Mapping[str, Any]) -> InputSpec:
    """Return what models are built for."""
    x = _one(record)
    shape: Any = _transform(record).output_shape(shape_of(x))
    return InputSpec(shape, int(record["classes"]), model_types(x), record.get("objective", "multiclass"))


def blank(record: Mapping[str, Any], clients: int) -> Federation:
    """Return a federation without samples whose models and inputs are those of the run."""
    x = map_inputs(lambda t: t[:0], _one(record))
    nothing = [np.zeros(0, np.int64) for _ in range(clients)]
    transform = _transform(record)
    classes, objective = int(record["classes"]), record.get("objective", "multiclass")
    data = Samples(x, targets.blank(0, classes, objective))
    missing = {
        name: MissingValues(tuple(one["mean"]), tuple(one["indicated"]))
        for name, one in record.get("missing", {}).items()
    }
    return Federation(
        data, nothing, classes, transform=transform, names=record["names"], objective=objective, missing=missing
    )


def _transform(record: Mapping[str, Any]) -> AnyTransform:
    named = {name: from_mapping(NamedInput, entry) for name, entry in record.get("named", {}).items()}
    if named:
        return NamedTransforms({name: one.transform() for name, one in named.items() if one.std})
    return Transform(tuple(record.get("mean", ())), tuple(record.get("std", ())), resize=record.get("resize"))


def _one(record: Mapping[str, Any]) -> Any:
    """Return one sample of zeros."""
    if named := record.get("named"):
        shapes = {name: tuple(entry["shape"]) for name, entry in named.items()}
        return one_blank(shapes, {name: getattr(torch, entry["type"]) for name, entry in named.items()})
    return one_blank(tuple(record["shape"]), getattr(torch, record["dtype"]))
