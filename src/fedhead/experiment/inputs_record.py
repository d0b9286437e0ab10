"""What a run's samples look like, kept in its folder: models can be built and asked without the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedhead.data.arrays import Samples
from fedhead.data.augment import Transform
from fedhead.data.federation import Federation
from fedhead.experiment.data import Inputs


def describe(federation: Federation) -> dict[str, Any]:
    """Return shape, type, classes and normalization of a federation's samples, as JSON can hold them."""
    transform = federation.transform
    return {
        "shape": list(federation.input_shape),
        "dtype": str(federation.train.x.dtype).removeprefix("torch."),
        "classes": federation.classes,
        "names": None if federation.names is None else list(federation.names),
        "mean": list(transform.mean),
        "std": list(transform.std),
    }


def inputs(record: Mapping[str, Any]) -> Inputs:
    """Return what models are built for."""
    return Inputs(tuple(record["shape"]), int(record["classes"]), record["dtype"] == "int64")


def blank(record: Mapping[str, Any], clients: int) -> Federation:
    """Return a federation without samples whose models and inputs are those of the run."""
    x = torch.zeros(0, *record["shape"], dtype=getattr(torch, record["dtype"]))
    nothing = [np.zeros(0, np.int64) for _ in range(clients)]
    transform = Transform(tuple(record["mean"]), tuple(record["std"]))
    data = Samples(x, torch.zeros(0, dtype=torch.int64))
    return Federation(data, nothing, int(record["classes"]), transform=transform, names=record["names"])
