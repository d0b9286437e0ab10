"""The cohort of a round: who takes part, who drops out, and how much each reply counts."""

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
    """The clients of an exchange.

    Args:
        clients: Those that are asked, in the order of their numbers.
        inclusion: The probability with which each was selected, where these differ.
        dropped: Why others that were selected are not asked.
    """

    clients: list[int]
    inclusion: Mapping[int, float] = field(default_factory=dict)
    dropped: Mapping[int, str] = field(default_factory=dict)


def draw(sampler: Sampler, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Cohort:
    """Return the clients that a sampler selects for a round.

    Args:
        sampler: The sampler.
        round: Number of the round, from 1.
        count: How many clients are wanted, if so many can take part.
        sizes: Training samples of each client that can take part, by its number.
        seed: Seed of the run.

    Raises:
        BadInput: If the sampler raises, or returns something else than some of the clients.

    >>> from fedhead.samplers.uniform import UniformSampler
    >>> draw(UniformSampler(), 1, 5, {0: 9, 3: 2}, seed=0).clients
    [0, 3]
    """
    count, title = min(len(sizes), count), f"sampler {sampler.name}"
    with user_code(title):
        found, inclusion = sampler.select(round, count, dict(sizes), seed), sampler.inclusion(count, dict(sizes))
    clients = _numbers(found, sizes, f"{title}: select")
    if inclusion is None:
        return Cohort(clients)
    return Cohort(clients, {k: _probability(inclusion, k, f"{title}: inclusion") for k in clients})


def drop_late(cohort: Cohort, stragglers: Stragglers, round: int, seed: int) -> Cohort:
    """Return a cohort without the clients that are late, where the server drops these."""
    late = [k for k in cohort.clients if stragglers.drops(k, round, seed)]
    asked = [k for k in cohort.clients if k not in late]
    return replace(cohort, clients=asked, dropped=dict.fromkeys(late, "it was late (a simulated straggler)"))


def check(sampler: Sampler, count: int, sizes: Mapping[int, int], seed: int) -> None:
    """Select the clients of the first round twice.

    Raises:
        BadInput: If the sampler fails, or if the second time it selects others.
    """
    with check_once(f"sampler {sampler.name}", (sampler,), dict, ""):
        twice = [draw(sampler, 1, count, sizes, seed) for _ in range(2)]
    if twice[0] != twice[1]:
        raise BadInput(
            f"sampler {sampler.name} selects other clients when it is asked again: let it depend on its arguments "
            "alone, and draw with fedhead.random.permutation(fedhead.random.key(seed, round), …)"
        )


def _numbers(found: Any, sizes: Mapping[int, int], title: str) -> list[int]:
    """Return the clients that a sampler's hook returned, checked."""
    try:
        listed = list(found)
    except TypeError:
        raise BadInput(f"{title} returned {type(found).__name__}: return a list of clients' numbers") from None
    for k in listed:
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or k not in sizes:
            raise BadInput(f"{title} returned {k!r}, which is none of the clients: return numbers among sizes")
    if len(set(listed)) < len(listed):
        raise BadInput(f"{title} returned a client twice: {[int(k) for k in listed]}; return each once")
    return sorted(int(k) for k in listed)


def _probability(found: Any, client: int, title: str) -> float:
    """Return the probability of a client that a sampler's hook returned, checked."""
    try:
        value = float(found[client])
    except (TypeError, ValueError, KeyError, IndexError):
        value = 0.0
    if not 0 < value <= 1:
        raise BadInput(f"{title} has no probability above 0 and at most 1 for client {client}: return one for each")
    return value
