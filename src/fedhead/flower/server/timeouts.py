"""Deadlines of the server, and its quorum."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """Deadlines of the server and its quorum."""

    quorum: int = 1  # the fewest sites with which a round counts
    round_seconds: float = 600.0  # for a site's response to any request
    join_seconds: float = 120.0  # for all sites to come, and for a quorum to come back
    attempts: int = 3  # at a round without a quorum
    poll: float = 0.1  # seconds between polls
