"""One client left out: its samples become the test set, and nothing that the others use was computed from them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import map_inputs
from fedhead.data.federation import preprocessing
from fedhead.data.federation.client_data import ClientData
from fedhead.data.inputs.arrays import Samples

F = TypeVar("F", bound=ClientData)


def leave_out(federation: F, client: int) -> F:
    """Return the federation of the other clients, with all samples of one client as the global test set.

    Args:
        federation: At least two clients.
        client: Number of the one that is left out.

    Raises:
        BadInput: If there is no such client, it has no samples, or no other client has any.
    """
    if not 0 <= client < len(federation):
        raise BadInput(f"there is no client {client} to leave out: they are 0 … {len(federation) - 1}")
    others = [k for k in range(len(federation)) if k != client]
    if not any(len(federation.rows[k]) for k in others):
        raise BadInput(f"client {client} can't be left out: no other client has samples to train on")
    held = _samples_of(federation, client)
    if not len(held.y):
        raise BadInput(f"client {client} can't be left out for a test: it has no samples")
    validation = federation.validation
    made = replace(
        federation,
        rows=[federation.rows[k] for k in others],
        test=held,
        client_test=None,
        validation=None if validation is None else [validation[k] for k in others],
        client_names=None if federation.client_names is None else [federation.client_names[k] for k in others],
    )
    kept = [*made.rows, *(made.validation or [])]
    return fitted_anew(federation, made.take(np.sort(np.concatenate(kept))))


def is_fitted(federation: ClientData) -> bool:
    """Return whether the transform or the filling of missing values was computed from the clients' samples."""
    return bool(federation.missing) or _standardized(federation)


def _samples_of(federation: ClientData, client: int) -> Samples:
    """Return all samples of a client, those held out for testing and validation among them."""
    rows = [federation.rows[client]]
    if federation.validation is not None:
        rows.append(federation.validation[client])
    local = None if federation.client_test is None else federation.client_test[client]
    if local is not None and federation.client_test_from == "train":
        rows.append(local)
    found = federation.train.take(np.sort(np.concatenate(rows)))
    if local is None or federation.client_test_from == "train" or federation.test is None:
        return found
    tests = federation.test.take(local)
    return Samples(map_inputs(lambda *parts: torch.cat(parts), found.x, tests.x), torch.cat([found.y, tests.y]))


def _standardized(federation: ClientData) -> bool:
    try:
        return preprocessing.standardize(federation).transform == federation.transform
    except BadInput:  # tokens, or samples that were filled up to one length
        return False


def fitted_anew(before: ClientData, made: F) -> F:
    """Return a federation with the means and deviations of its training samples.

    Args:
        before: The federation whose means and deviations they are now.
        made: What was made of it with fewer training samples.
    """
    standard = _standardized(before)
    if standard:
        made = replace(made, transform=made.transform.replace(None, "unit"))
    if before.missing:
        undone = {name: _with_gaps(getattr(made, name), before) for name in ("train", "test", "public")}
        made = preprocessing.fill_missing(replace(made, missing={}, **undone))  # type: ignore[arg-type]  # the training data is there
    return preprocessing.standardize(made) if standard else made


def _with_gaps(data: Samples | None, before: ClientData) -> Samples | None:
    """Return samples as they were before their missing values were filled."""
    if data is None:
        return None
    undo = before.missing

    def gaps(name: str, t: Tensor) -> Tensor:
        return undo[name].undo(t) if name in undo else t

    x = data.x
    named = {name: gaps(name, t) for name, t in x.items()} if isinstance(x, dict) else gaps("", x)
    return Samples(named, data.y)
