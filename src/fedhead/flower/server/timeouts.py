"""Timeouts of the server, and its quorum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedhead.core.components.ranges import Above, AtLeast


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Keys of server.yaml: timeouts of the server and its quorum."""

    quorum: Annotated[int, AtLeast(1)] = 1  # minimum number of sites of a round
    round_seconds: Annotated[float, Above(0)] = 600.0  # timeout of a request
    join_seconds: Annotated[float, Above(0)] = 120.0  # timeout for all sites to join, and for a quorum to return
    attempts: Annotated[int, AtLeast(1)] = 3  # of a round, if it has no quorum
