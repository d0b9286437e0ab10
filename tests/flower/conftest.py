"""These tests are of what runs on Flower: without it (`pip install 'fedhead[flower]'`) there is nothing to test."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("flwr") else ["*"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Don't wait for a network: nodes of an in-process grid answer at once or never."""
    from fedhead.flower.server import connections, transport

    monkeypatch.setattr(transport, "GRACE", 0.0)
    monkeypatch.setattr(connections.SiteConnections, "poll", 0.01)
