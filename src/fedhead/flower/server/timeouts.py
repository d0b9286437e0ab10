"""Deadlines of the server, and its quorum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedhead.core.components.ranges import Above, AtLeast


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Keys of server.yaml: deadlines of the server and its quorum."""

    quorum: Annotated[int, AtLeast(1)] = 1  # the fewest sites with which a round counts
    round_seconds: Annotated[float, Above(0)] = 600.0  # for a site's response to any request
    join_seconds: Annotated[float, Above(0)] = 120.0  # for all sites to come, and for a quorum to come back
    attempts: Annotated[int, AtLeast(1)] = 3  # at a round without a quorum
