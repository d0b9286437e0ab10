"""Natural clients: samples that come with the client that each belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput, require
from fedhead.data.inputs import labels
from fedhead.data.inputs.labels import Classes
from fedhead.data.partitions.allocation import Rows

DEFAULT = "in a recipe clients is 10 unless given"  # for errors: a number that the user need not have given


def rows_of_groups(
    groups: Any, names: Sequence[str] | None, samples: int, clients: int | None
) -> tuple[list[Rows], tuple[str, ...]]:
    """Return the rows of each group, and the groups' names.

    Args:
        groups: Client of each sample, [N]: numbers or words.
        names: Names of the clients, if the groups are numbers 0, 1, 2 ….
        samples: Number of samples.
        clients: Number of clients that is expected, if any.

    Raises:
        BadInput: If the groups do not fit the samples or the number of clients.
    """
    require(groups is not None, "partition natural: the data names no clients; give groups, or use iid or dirichlet")
    read = _read(groups, "groups", samples, "samples")
    found = Classes.find(read, names, None)
    count = found.count
    known = clients in (None, count)
    require(known, f"clients: the data has {count} groups, not {clients}; set clients={count} ({DEFAULT})")
    index = found.encode(read, "groups").numpy()
    order = np.argsort(index, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(index, minlength=found.count))[:-1])
    return rows, found.names or tuple(str(k) for k in range(found.count))


def test_rows_of_groups(
    groups: Any, names: Sequence[str] | None, samples: int, client_names: Sequence[str]
) -> list[Rows]:
    """Return the test samples of each client, from the client that each belongs to.

    Args:
        groups: Client of each test sample, [N]: numbers or words.
        names: Names of the clients, if the groups are numbers 0, 1, 2 ….
        samples: Number of test samples.
        client_names: The clients, from `rows_of_groups` of the training data.

    Raises:
        BadInput: If the groups do not fit the samples, or name a client that has no training samples.
    """
    read = _read(groups, "test_groups", samples, "test samples")
    place = {str(k) if names is not None else name: k for k, name in enumerate(client_names)}
    if strange := next((value for value in map(str, read) if value not in place), None):
        raise BadInput(f"test_groups holds {strange!r}, which is none of the clients {', '.join(client_names[:8])} …")
    index = np.array([place[str(value)] for value in read], np.int64)
    return [np.flatnonzero(index == k) for k in range(len(client_names))]


def _read(groups: Any, what: str, samples: int, noun: str) -> NDArray[Any]:
    read = labels.read(groups, what)
    require(len(read) == samples, f"{what} has {len(read)} entries, there are {samples} {noun}: they must match")
    return read
