"""Natural clients: data with a client label for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput, require
from fedhead.data.inputs import labels
from fedhead.data.inputs.arrays import to_array
from fedhead.data.partitions.allocation import Indices

DEFAULT = "in a recipe clients is 10 unless given"  # hint in error messages


def indices_of_groups(
    groups: Any, names: Sequence[str] | None, samples: int, clients: int | None
) -> tuple[list[Indices], tuple[str, ...]]:
    """Return the indices of each group, and the groups' names.

    Args:
        groups: Client of each sample, [N]: numbers or words.
        names: Names of the clients, if the groups are numbers 0, 1, 2 ….
        samples: Number of samples.
        clients: Expected number of clients, if any.

    Raises:
        BadInput: If the groups don't match the samples or the number of clients.
    """
    require(groups is not None, "partition natural: the data names no clients; give groups, or use iid or dirichlet")
    read = _read(groups, "groups", samples, "samples")
    client_names = tuple(map(str, np.unique(read) if names is None else names))
    count = len(client_names)
    require(len(set(client_names)) == count, f"group_names: two of {', '.join(client_names)} are the same")
    if clients not in (None, count):
        raise BadInput(f"clients: the data has {count} groups, not {clients}; set clients={count} ({DEFAULT})")
    return _indices(read, client_names, names is not None, "groups"), client_names


def test_indices_of_groups(
    groups: Any, names: Sequence[str] | None, samples: int, client_names: Sequence[str]
) -> list[Indices]:
    """Return the test samples of each client from the client label of each sample.

    Args:
        groups: Client of each test sample, [N]: numbers or words.
        names: Names of the clients, if the groups are numbers 0, 1, 2 ….
        samples: Number of test samples.
        client_names: The clients, from `indices_of_groups` of the training data.

    Raises:
        BadInput: If the groups don't match the samples, or name a client without training samples.
    """
    read = _read(groups, "test_groups", samples, "test samples")
    return _indices(read, client_names, names is not None, "test_groups")


def _read(groups: Any, name: str, samples: int, noun: str) -> NDArray[Any]:
    """Return the client of each sample, as whole numbers or words."""
    import pandas as pd

    array = to_array(groups, name, "entries")
    if array.shape not in ((samples,), (samples, 1)):
        raise BadInput(f"{name} has shape {array.shape}, there are {samples} {noun}: name one client for each")
    array = array.reshape(samples)
    missing = np.asarray(pd.isna(array))
    if missing.any():
        raise BadInput(f"{name} names no client for sample {missing.argmax()} (NaN or None): leave such samples out")
    if array.dtype.kind == "c" or (array.dtype.kind == "f" and (array != np.rint(array)).any()):
        raise BadInput(f"{name} holds {array.dtype}: number the clients 0, 1, 2 …, or give their names")
    return labels.read(array, name)


def _indices(read: NDArray[Any], client_names: Sequence[str], numbered: bool, name: str) -> list[Indices]:
    """Return the sample indices of each client.

    Args:
        read: Client of each sample, from `_read`.
        client_names: Names of the clients.
        numbered: Whether integers in `read` are indices of clients; otherwise they are client names.
        name: Name of the argument in error messages.
    """
    by_number = numbered and read.dtype.kind != "U"
    place = {str(k) if by_number else name: k for k, name in enumerate(client_names)}
    values, inverse = np.unique(read, return_inverse=True)
    if strange := [str(value) for value in values if str(value) not in place]:
        raise BadInput(f"{name} holds {strange[0]!r}, which is none of the clients {', '.join(list(place)[:8])} …")
    index = np.array([place[str(value)] for value in values], np.int64)[inverse]
    order = np.argsort(index, kind="stable")
    return np.split(order, np.cumsum(np.bincount(index, minlength=len(client_names)))[:-1])
