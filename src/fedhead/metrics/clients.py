"""Metrics of how the clients' accuracies, or errors, are distributed; they need clients with test samples."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedhead.metrics.registry import metric, variant

Shares = NDArray[np.float64]  # accuracies from 0 to 1, of the clients that have test samples


@metric("worst_client", better="max")
def worst_client(clients: Shares) -> float:
    """The accuracy of the client that has the lowest."""
    return float(clients.min())


@metric("worst_decile", better="max")
def worst_decile(clients: Shares) -> float:
    """The mean accuracy of the tenth of the clients that have the lowest, at least of one (Li et al., 2020, q-FFL)."""
    return float(np.sort(clients)[: max(1, math.ceil(len(clients) / 10))].mean())


@metric("client_std", better="min")
def client_std(clients: Shares) -> float:
    """The standard deviation of the clients' accuracies, 0 where all are alike."""
    return float(clients.std())


# -- of errors, in a regression -----------------------------------------------------------------------
@variant("worst_client", "regression", "min")
def worst_client_error(clients: Shares) -> float:
    """The mean squared error of the client that has the largest."""
    return float(clients.max())


@variant("worst_decile", "regression", "min")
def worst_decile_error(clients: Shares) -> float:
    """The mean over the tenth of the clients that have the largest mean squared errors, at least of one."""
    return float(np.sort(clients)[-max(1, math.ceil(len(clients) / 10)) :].mean())
