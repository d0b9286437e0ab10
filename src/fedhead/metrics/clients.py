"""Metrics of the distribution over clients; they need clients with test samples."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedhead.metrics.registry import metric, variant

Shares = NDArray[np.float64]  # accuracies from 0 to 1 of the clients with test samples


@metric("worst_client", better="max")
def worst_client(clients: Shares) -> float:
    """Return the lowest accuracy of a client."""
    return float(clients.min())


@metric("worst_decile", better="max")
def worst_decile(clients: Shares) -> float:
    """Return the mean accuracy of the worst tenth of the clients, at least one (Li et al., 2020, q-FFL)."""
    return float(np.sort(clients)[: max(1, math.ceil(len(clients) / 10))].mean())


@metric("client_std", better="min")
def client_std(clients: Shares) -> float:
    """Return the standard deviation of the clients' accuracies."""
    return float(clients.std())


# -- errors of a regression --------------------------------------------------------------------------
@variant("worst_client", "regression", "min")
def worst_client_error(clients: Shares) -> float:
    """Return the largest mean squared error of a client."""
    return float(clients.max())


@variant("worst_decile", "regression", "min")
def worst_decile_error(clients: Shares) -> float:
    """Return the average mean squared error of the worst tenth of the clients, at least one."""
    return float(np.sort(clients)[-max(1, math.ceil(len(clients) / 10)) :].mean())
