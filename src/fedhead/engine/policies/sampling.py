"""Cohort of a round: selected clients, dropped clients and inclusion probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedhead.core.system.errors import BadInput, user_code
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.executors.client.hook_check import check_once
from fedhead.samplers.base import Sampler


@dataclass(frozen=True)
class Cohort:
    """Clients of an exchange.

    Args:
        clients: Clients to query, in ascending order.
        inclusion: Inclusion probability of each client; empty if all are equal.
        dropped: Reason for each selected client that is not queried.
    """

    clients: list[int]
    inclusion: Mapping[int, float] = field(default_factory=dict)
    dropped: Mapping[int, str] = field(default_factory=dict)


def draw(sampler: Sampler, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Cohort:
    """Return the cohort that a sampler selects for a round.

    Args:
        sampler: Sampler.
        round: Number of the round, from 1.
        count: Number of clients to select, if that many are available.
        sizes: Number of training samples of each available client.
        seed: Seed of the run.

    Raises:
        BadInput: If the sampler raises, or returns anything but a subset of the clients.

    >>> from fedhead.samplers.uniform import UniformSampler
    >>> draw(UniformSampler(), 1, 5, {0: 9, 3: 2}, seed=0).clients
    [0, 3]
    """
    count, title = min(len(sizes), count), f"sampler {sampler.name}"
    with user_code(title):
        selected, inclusion = sampler.select(round, count, dict(sizes), seed), sampler.inclusion(count, dict(sizes))
    clients = _check_clients(selected, sizes, f"{title}: select")
    if inclusion is None:
        return Cohort(clients)
    return Cohort(clients, {k: _probability(inclusion, k, f"{title}: inclusion") for k in clients})


def drop_late(cohort: Cohort, stragglers: Stragglers, round: int, seed: int) -> Cohort:
    """Return a cohort without late clients, if the policy drops them."""
    late = [k for k in cohort.clients if stragglers.drops(k, round, seed)]
    queried = [k for k in cohort.clients if k not in late]
    return replace(cohort, clients=queried, dropped=dict.fromkeys(late, "it was late (a simulated straggler)"))


def check(sampler: Sampler, count: int, sizes: Mapping[int, int], seed: int) -> Cohort:
    """Check that a sampler is deterministic, by selecting the first cohort twice, and return it.

    Raises:
        BadInput: If the sampler fails, or if the two cohorts differ.
    """
    with check_once(f"sampler {sampler.name}", (sampler,), dict, ""):
        cohorts = [draw(sampler, 1, count, sizes, seed) for _ in range(2)]
    if cohorts[0] != cohorts[1]:
        raise BadInput(
            f"sampler {sampler.name} selects other clients when it is asked again: let it depend on its arguments "
            "alone, and draw with fedhead.random.permutation(fedhead.random.key(seed, round), …)"
        )
    return cohorts[0]


def _check_clients(selected: Any, sizes: Mapping[int, int], title: str) -> list[int]:
    """Return the clients selected by a sampler as a sorted list, after validation."""
    try:
        clients = list(selected)
    except TypeError:
        raise BadInput(f"{title} returned {type(selected).__name__}: return a list of clients' numbers") from None
    for k in clients:
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or k not in sizes:
            raise BadInput(f"{title} returned {k!r}, which is none of the clients: return numbers among sizes")
    if len(set(clients)) < len(clients):
        raise BadInput(f"{title} returned a client twice: {[int(k) for k in clients]}; return each once")
    return sorted(int(k) for k in clients)


def _probability(inclusion: Any, client: int, title: str) -> float:
    """Return a client's inclusion probability from a sampler, after validation."""
    try:
        value = float(inclusion[client])
    except (TypeError, ValueError, KeyError, IndexError):
        value = 0.0
    if not 0 < value <= 1:
        raise BadInput(f"{title} has no probability above 0 and at most 1 for client {client}: return one for each")
    return value
