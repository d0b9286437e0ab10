"""A site's name belongs to its public key: a node with another key gets neither the name nor the site's work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from simulations import make_world, run
from small import federation, network
from small_sites import changed_response

from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.deploy import certificates
from fedhead.flower.server.node_keys import site_keys
from fedhead.flower.server.transport import FlowerTransport
from fedhead.methods import METHODS
from fedhead.testing.inprocess import InProcess, InProcessFederation

KEYS = {f"site-{k}": f"key of site-{k}".encode() for k in range(5)}


@dataclass
class Keyed(InProcess):
    """A grid that tells the nodes' keys, as a deployment's does."""

    keys: dict[int, bytes] = field(default_factory=dict)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.nodes]


def make(folder: Path) -> tuple[InProcessFederation, Keyed]:
    settings = {"rounds": 2, "local": LocalTraining(epochs=1, batch_size=4)}
    world = make_world(federation(), {"own": network("group")}, METHODS["fedavg"](), settings, folder)
    return world, Keyed(world.grid().nodes, keys={100 + k: KEYS[f"site-{k}"] for k in range(5)})


def bound(world: InProcessFederation, grid: InProcess, said: list[str]) -> FlowerTransport:
    transport = world.transport(grid, said)
    transport.nodes.keys = KEYS
    return transport


def test_a_stolen_name_is_refused_and_logged_and_the_site_goes_on(tmp_path: Path) -> None:
    world, grid = make(tmp_path)
    asked: list[str] = []

    def spied(message: Message, honest: Callable[[], RecordDict]) -> RecordDict:
        asked.append(message.metadata.message_type)
        return honest()

    grid.nodes[555], grid.keys[555], grid.faults[555] = world.site(1), b"mallory's", spied
    said: list[str] = []
    transport = bound(world, grid, said)
    result = run(transport)
    refusal = "node 555 is left out: it calls itself site-1, but its key is not the one that was registered for site-1"
    assert said.count(refusal) == 1
    assert asked == ["query.hello"]  # it got no work
    assert transport.nodes.nodes["site-1"] == 101
    assert not any("failed" in row for row in result.rows)


def test_a_key_opens_no_other_sites_name(tmp_path: Path) -> None:
    world, grid = make(tmp_path)
    grid.nodes[103] = world.site(1)  # site-3, admitted with its own key, calls itself site-1
    said: list[str] = []
    transport = bound(world, grid, said)
    run(transport)
    assert any("site site-3 (node 103) is left out: it calls itself site-1, but its key" in line for line in said)
    assert "site-3" not in transport.nodes.nodes
    assert transport.nodes.nodes["site-1"] == 101


def test_a_failure_under_another_sites_name_is_not_held_against_that_site(tmp_path: Path) -> None:
    """Otherwise the others would not wait for that site, and its record would give a false reason."""
    world, grid = make(tmp_path)
    late = grid.nodes.pop(101)  # site-1 is not here yet

    def lie(header: dict[str, Any], trees: dict[str, Any]) -> None:
        header |= {"site": "site-1", "problem": "data", "reference": "00000000"}

    grid.faults[103] = lambda message, honest: changed_response(honest(), lie)
    said: list[str] = []
    transport = bound(world, grid, said)
    present = transport.present()
    assert transport.why_absent(present)[1] == "it is not connected"
    assert not transport.nodes.complete(present)
    assert any("site site-3 (node 103) is left out: its data can't be used" in line for line in said)
    grid.nodes[101] = late
    assert 1 in transport.present()


def test_a_message_that_cant_be_read_is_attributed_by_its_key(tmp_path: Path) -> None:
    world, grid = make(tmp_path)
    grid.faults[103] = lambda message, honest: RecordDict()
    said: list[str] = []
    bound(world, grid, said).present()
    assert any("site site-3 (node 103) is left out: the message is not from fedhead" in line for line in said)


def test_without_keys_a_newcomer_does_not_displace_a_site_that_is_here(tmp_path: Path) -> None:
    world, grid = make(tmp_path)
    said: list[str] = []
    transport = world.transport(grid, said)
    transport.begin()
    grid.nodes[555] = world.site(1)
    assert 1 in transport.present()
    assert transport.nodes.nodes["site-1"] == 101
    assert any("node 555 is left out: it calls itself site-1, which is here already as node 101" in s for s in said)
    del grid.nodes[101]  # only now is the name free
    assert 1 in transport.present()
    assert transport.nodes.nodes["site-1"] == 555


def test_the_keys_of_the_sites_are_those_that_certs_wrote(tmp_path: Path) -> None:
    assert site_keys(tmp_path / "sites", ["north"]) == {}
    certificates.write(tmp_path, ["127.0.0.1"], ["north", "south"])
    keys = site_keys(tmp_path / "sites", ["north", "south"])
    assert keys["north"].startswith(b"-----BEGIN PUBLIC KEY-----")
    assert keys["north"] != keys["south"]
    with pytest.raises(BadInput, match=r"west\.pub is no public key of a site: write it with fedhead deploy certs"):
        site_keys(tmp_path / "sites", ["west"])
