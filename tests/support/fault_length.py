"""Length of the attacks of tests/faults: `make test-faults` sets FEDHEAD_FAULTS=full."""

from __future__ import annotations

import os

FULL = os.environ.get("FEDHEAD_FAULTS") == "full"


def length(short: int, full: int) -> int:
    """Return how often something is tried: a sample of it in the slow tier, all of it at full length."""
    return full if FULL else short
