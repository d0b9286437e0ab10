"""Training, validation and test samples of a federation's clients; see the methods of `Federation`."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedhead.core.components.parameters import check
from fedhead.core.system.errors import BadInput, require
from fedhead.core.training import random
from fedhead.core.tree.inputs import map_inputs
from fedhead.data.federation import preprocessing
from fedhead.data.federation.federation_data import FederationData
from fedhead.data.inputs.arrays import Samples
from fedhead.data.partitions.allocation import Rows
from fedhead.data.partitions.client_test_sets import SHARE, ClientTest, Fraction, parse

F = TypeVar("F", bound=FederationData)


def with_client_test(federation: F, client_test: str | float | ClientTest | None, seed: int) -> F:
    """Return the federation with a test set for each client."""
    rule = parse(client_test)
    if rule is None:
        return federation
    if isinstance(rule, Fraction):
        parts = [rule.split(rows, federation.strata, seed, k) for k, rows in enumerate(federation.rows)]
        train_rows, test_rows = [a for a, _ in parts], [b for _, b in parts]
        return replace(federation, rows=train_rows, client_test=test_rows, client_test_from="train")
    if federation.test is None:
        raise BadInput("client_test: matched draws from the global test set, but there is none; give test=(x, y)")
    require(
        federation.has_classes,
        "client_test: matched needs classes; give a share of each client's samples, such as 0.3",
    )
    y, counts = federation.test.y.numpy(), federation.counts()
    test_rows = [rule.draw(count, int(counts.sum()), y, seed, k) for k, count in enumerate(counts)]
    return replace(federation, client_test=test_rows, client_test_from="test")


def with_validation(federation: F, share: float | None, seed: int) -> F:
    """Return the federation with a share of each client's training samples set apart for validation."""
    if share is None or federation.validation is not None:
        return federation
    check("validation", share, SHARE)
    train_rows, validation = [], []
    for k, rows in enumerate(federation.rows):
        order = random.permutation(random.key(seed, "validation", k), len(rows))
        size = min(int(share * len(rows)), max(len(rows) - 1, 0))  # at least one sample is kept for training
        train_rows.append(np.sort(rows[order[size:]]))
        validation.append(np.sort(rows[order[:size]]))
    require(
        any(map(len, validation)),
        f"validation: {share:g} of the largest client's {max(federation.sizes)} samples is none",
    )
    return replace(federation, rows=train_rows, validation=validation)


def take(federation: F, kept: Rows) -> F:
    """Return the federation with only these rows of its training set."""
    new_row = np.full(len(federation.train.y), -1, np.int64)
    new_row[kept] = np.arange(len(kept))

    def renumber(clients: list[Rows] | None) -> list[Rows] | None:
        return None if clients is None else [new_row[rows][new_row[rows] >= 0] for rows in clients]

    client_test = federation.client_test
    return replace(
        federation,
        train=federation.train.take(kept),
        rows=renumber(federation.rows) or [],
        client_test=renumber(client_test) if federation.client_test_from == "train" else client_test,
        validation=renumber(federation.validation),
    )


def hold_out(federation: F, test: float | NDArray[np.bool_], seed: int) -> F:
    """Return the federation with some samples of each client as its test set, and all of these as the global one."""
    y, clients = federation.strata, federation.rows
    if isinstance(test, np.ndarray):
        is_test = test
    else:
        is_test, rule = np.zeros(len(y), bool), Fraction(check("test", test, SHARE), stratified=True)
        for k, rows in enumerate(clients):
            is_test[rule.split(rows, y, seed, k)[1]] = True
    require(
        is_test.any() and not all(is_test[rows].all() for rows in clients),
        "test: the clients have too few samples to hold test samples out; give test=(x, y)",
    )
    test_row = np.cumsum(is_test) - 1
    training = replace(federation, rows=[rows[~is_test[rows]] for rows in clients], client_test=None)
    return replace(
        take(training, np.flatnonzero(~is_test)),
        test=federation.train.take(np.flatnonzero(is_test)),
        client_test=[test_row[rows[is_test[rows]]] for rows in clients],
        client_test_from="test",
    )


def leave_out(federation: F, client: int) -> F:
    """Return the federation of the other clients, with all samples of one client as the global test set."""
    require(
        0 <= client < len(federation),
        f"there is no client {client} to leave out: they are 0 … {len(federation) - 1}",
    )
    others = [k for k in range(len(federation)) if k != client]
    require(
        any(federation.sizes[k] for k in others),
        f"client {client} can't be left out: no other client has samples to train on",
    )
    test = _samples_of(federation, client)
    require(len(test.y), f"client {client} can't be left out for a test: it has no samples")
    rows, validation, names = federation.rows, federation.validation, federation.client_names
    rest = replace(
        federation,
        rows=[rows[k] for k in others],
        test=test,
        client_test=None,
        validation=None if validation is None else [validation[k] for k in others],
        client_names=None if names is None else [names[k] for k in others],
    )
    kept = np.sort(np.concatenate([*rest.rows, *(rest.validation or [])]))
    return preprocessing.refit(federation, take(rest, kept))


def _samples_of(federation: FederationData, client: int) -> Samples:
    """Return all samples of a client, those held out for testing and validation among them."""
    test_rows = None if federation.client_test is None else federation.client_test[client]
    rows = [federation.rows[client]]
    if federation.validation is not None:
        rows.append(federation.validation[client])
    if test_rows is not None and federation.client_test_from == "train":
        rows.append(test_rows)
    samples = federation.train.take(np.sort(np.concatenate(rows)))
    if test_rows is None or federation.client_test_from == "train" or federation.test is None:
        return samples
    tests = federation.test.take(test_rows)
    return Samples(map_inputs(lambda *parts: torch.cat(parts), samples.x, tests.x), torch.cat([samples.y, tests.y]))
