"""Secure sums across machines: the numbers of a simulation, dropouts, and what sites and server refuse."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Error, Message, RecordDict
from simulations import make_simulation, make_world, run
from small import federation, network
from small_sites import changed_response

import fedhead as fh
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import SecureSum
from fedhead.api.privacy import messages
from fedhead.api.privacy import wire as listing
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.tree.tree import Tree
from fedhead.deploy import certificates
from fedhead.engine.experiment.experiment import InputSpec
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.flower.ledger import LEDGER, Ledger
from fedhead.flower.server.node_keys import secure_sum_keys
from fedhead.flower.server.transport import FlowerTransport
from fedhead.flower.site.policy import Policy
from fedhead.flower.site.secure_sums import SiteSecureSum
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import RunSpec, SecureRequest
from fedhead.flower.wire.site_errors import SiteProblem
from fedhead.testing.inprocess import Fault, InProcess, InProcessFederation

SECURE = SecureSum(threshold=0.5)  # one of the five sites has no samples
SETTINGS: dict[str, Any] = {"rounds": 1, "local": LocalTraining(epochs=1, batch_size=4), "uploads": [SECURE]}
PEM = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class Keyed(InProcess):
    """A grid whose nodes have registered keys, as those of a deployment."""

    keys: dict[int, bytes]

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=node, public_key=key) for node, key in self.keys.items()]


class Sites:
    """Five sites with keys, four of which have samples."""

    def __init__(
        self, folder: Path, policy: Policy | None = None, stages: Sequence[Stage] = (fh.Ridge(),), **settings: Any
    ):
        settings = {**SETTINGS, **settings}
        self.world: InProcessFederation = make_world(
            federation(), {"own": network("group")}, fh.FedAvg(), settings, folder, stages
        )
        self.private = [ec.generate_private_key(ec.SECP384R1()) for _ in range(5)]
        self.registered = {k: key.public_key() for k, key in enumerate(self.private)}
        self.said: list[str] = []
        policy = policy or Policy()
        grid = self.world.grid()
        for k, node in enumerate(list(grid.nodes)):
            secure = SiteSecureSum(lambda spec, k=k: (self.private[k], self.registered), policy.min_sum_sites)
            grid.nodes[node] = dataclasses.replace(grid.nodes[node], secure=secure, policy=policy)
        self.grid = Keyed(grid.nodes)
        pem = {k: key.public_bytes(*PEM) for k, key in self.registered.items()}
        self.grid.keys = {100 + k: key for k, key in pem.items()}
        self.transport: FlowerTransport = self.world.transport(self.grid, self.said, attempts=1)
        self.transport.nodes.keys = {f"site-{k}": key for k, key in pem.items()}

    def run(self) -> FinishedRun:
        return run(self.transport)

    def ledger(self) -> list[dict[str, Any]]:
        return list(Ledger(self.world.folder / "state" / LEDGER).entries())


def at(step: str, then: Fault) -> Fault:
    """A fault at one step of a secure sum."""

    def fault(message: Message, honest: Callable[[], RecordDict]) -> RecordDict | Error | None:
        header, _ = wire.unpack(message.content)
        return then(message, honest) if (header["secure"] or {}).get("step") == step else honest()

    return fault


def gone(message: Message, honest: Callable[[], RecordDict]) -> Error:
    return Error(code=1, reason="gone")


def same(one: Tree, two: Tree) -> None:
    left, right = one.leaves(), two.leaves()
    assert left.keys() == right.keys()
    for name, t in left.items():
        torch.testing.assert_close(t, right[name], atol=1e-5, rtol=1e-5)


def test_rounds_and_stages_equal_a_simulation_without_secure_sums(tmp_path: Path) -> None:
    stages = [fh.Ridge(), fh.PersonalRidge()]
    found = Sites(tmp_path / "secure", stages=stages).run()
    expected = Sites(tmp_path / "plain", stages=stages, uploads=[]).run()
    assert found.rows[0]["secure_sum"]
    assert found.rows[0]["accuracy"] == expected.rows[0]["accuracy"]
    for name, stage in expected.stages.items():
        same(found.stages[name].server, stage.server)
        assert found.stages[name].metrics["personal"] == pytest.approx(stage.metrics["personal"])


def test_the_ledger_records_masked_replies_as_such(tmp_path: Path) -> None:
    sites = Sites(tmp_path, rounds=0)
    sites.run()
    entries = [entry for entry in sites.ledger() if entry["site"] == "site-0" and entry["algorithm"] == "ridge"]
    asked = [(entry["kind"], (entry["secure"] or {}).get("step")) for entry in entries if entry["kind"] != "test"]
    assert asked == [("secure", "advertise"), ("secure", "share"), ("work", "mask"), ("secure", "unmask")]
    assert list(entries[2]["sent"]["send"]["tensors"]) == ["masked"]
    assert [bool(entry.get("release")) for entry in entries[:4]] == [False, False, True, True]
    assert len(json.dumps(entries)) < 20_000  # without the messages themselves


@pytest.mark.parametrize("step", ["advertise", "share", "mask", "unmask"])
def test_a_site_that_drops_out_is_named(step: str, tmp_path: Path) -> None:
    sites = Sites(tmp_path, rounds=0)
    sites.grid.faults[101] = at(step, gone)
    row = sites.run().stages["ridge"].metrics
    assert row["participants"] == (4 if step == "unmask" else 3)
    assert "Flower says gone" in row["failed"]["site-1"]


def test_a_site_that_restarts_between_two_steps_drops_out(tmp_path: Path) -> None:
    sites = Sites(tmp_path, rounds=0)

    def restarted(message: Message, honest: Callable[[], RecordDict]) -> RecordDict:
        sites.grid.nodes[101].secure._member = None
        return honest()

    sites.grid.faults[101] = at("mask", restarted)
    row = sites.run().stages["ridge"].metrics
    assert "it can't take part in the secure sum" in row["failed"]["site-1"]
    assert row["participants"] == 3


@pytest.mark.parametrize("secure", [{"1": "%"}, {"x": "AA=="}, {}, {"1": "AA=="}, {"-1": "AA=="}])
def test_a_message_that_is_none_leaves_the_site_out(secure: dict[str, str], tmp_path: Path) -> None:
    sites = Sites(tmp_path, rounds=0)
    sites.grid.faults[101] = at(
        "advertise", lambda message, honest: changed_response(honest(), lambda header, _: header.update(secure=secure))
    )
    row = sites.run().stages["ridge"].metrics
    assert list(row["failed"]) == ["site-1"]


def test_too_few_sites_end_the_run_and_name_them(tmp_path: Path) -> None:
    sites = Sites(tmp_path, rounds=0)
    for node in (100, 101):
        sites.grid.faults[node] = at("share", gone)
    with pytest.raises(
        FedheadError,
        match=r"no quorum: 0 of 3 replies after 1 attempts: .*2 of 4 clients .*site-0: Flower says gone",
    ):
        sites.run()
    assert not any(entry.get("release") for entry in sites.ledger())


def test_a_retry_is_a_new_session(tmp_path: Path) -> None:
    sites = Sites(tmp_path, rounds=0)
    transport = sites.world.transport(sites.grid, sites.said, attempts=2)
    transport.nodes.keys = sites.transport.nodes.keys
    first: set[str] = set()

    def once(message: Message, honest: Callable[[], RecordDict]) -> RecordDict | Error:
        session = wire.unpack(message.content)[0]["secure"]["id"]
        first.add(session) if not first else None
        return gone(message, honest) if session in first else honest()

    for node in (100, 101):
        sites.grid.faults[node] = at("mask", once)
    row = run(transport).stages["ridge"].metrics
    assert row["participants"] == 4
    sessions = {entry["secure"]["id"] for entry in sites.ledger() if entry.get("secure")}
    assert len(sessions) == 2


def test_masked_noise_is_charged_when_it_leaves_the_site(tmp_path: Path) -> None:
    sites = Sites(tmp_path, stages=[fh.Ridge()], rounds=0, privacy=[fh.DP(2.0, 1e-3)])
    sites.grid.faults[101] = at("unmask", gone)
    assert sites.run().stages["ridge"].metrics["participants"] == 4
    for site in ("site-0", "site-1"):
        charged = [entry["secure"]["step"] for entry in sites.ledger() if entry["site"] == site and "privacy" in entry]
        assert charged == ["mask"]


# -- what a site refuses ------------------------------------------------------------------------------
@pytest.mark.parametrize(("invited", "refused"), [(5, False), (6, True)])
def test_a_site_refuses_a_session_of_two_groups(invited: int, refused: bool) -> None:
    """Of six sites in a cohort of three, one half could reveal one secret of a site, the other half the other."""
    method, data = fh.FedAvg(), fh.Federation.load("digits", "iid", clients=8, subset=160)
    settings = {**SETTINGS, "participation": 3 / 8, "uploads": [fh.SecureSum()]}
    clients = make_simulation(data, [fh.build("mlp", data.input_shape, 10)], method, **settings).clients
    private = [ec.generate_private_key(ec.SECP384R1()) for _ in range(8)]
    registered = {k: key.public_key() for k, key in enumerate(private)}
    site = SiteSecureSum(lambda spec: (private[0], registered))
    asked = SecureRequest("00" * 16, "advertise", list(range(invited)), {})
    request: Any = SimpleNamespace(
        secure=asked, algorithm="train", round=1, spec=SimpleNamespace(sites=[f"site-{k}" for k in range(8)])
    )
    with pytest.raises(SiteProblem, match="two groups") if refused else nullcontext():
        site.answer(request, clients.experiment.secure_exchange(method, clients.task), 0)


def test_a_site_may_require_secure_sums(tmp_path: Path) -> None:
    with pytest.raises(FedheadError, match=r"its site\.yaml does not allow"):
        Sites(tmp_path, Policy(require_secure_sum=True), uploads=[]).run()
    assert Sites(tmp_path / "with", Policy(require_secure_sum=True)).run().stages["ridge"]


def test_a_site_may_require_more_sites_in_a_sum(tmp_path: Path) -> None:
    sites = Sites(tmp_path, Policy(min_sum_sites=4), rounds=0)
    with pytest.raises(FedheadError, match="0 of 4 clients have advertised keys"):
        sites.run()
    assert {entry["decision"] for entry in sites.ledger() if entry["kind"] == "secure"} == {"refused: policy"}


def test_an_open_request_in_a_run_with_secure_sums_is_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.transport.clients.experiment = dataclasses.replace(sites.transport.experiment, uploads=())
    with pytest.raises(FedheadError, match=r"its site\.yaml does not allow"):
        sites.run()
    assert not any("send" in entry.get("sent", {}) for entry in sites.ledger())


def test_sums_over_other_sites_are_other_releases(tmp_path: Path) -> None:
    sites = Sites(tmp_path, Policy(max_releases=1), [fh.Ridge(), fh.LDA()], rounds=0)
    sites.run()  # the same statistics of the same sites
    sites.grid.faults[103] = at("mask", gone)
    with pytest.raises(FedheadError, match="would exceed its max_releases or max_epsilon"):
        sites.run()
    releases = {entry["release"] for entry in sites.ledger() if entry.get("release")}
    assert len(releases) == 4  # one per site


def test_a_site_without_keys_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = Sites(tmp_path, rounds=0)
    sites.grid.nodes[101] = dataclasses.replace(sites.grid.nodes[101], secure=SiteSecureSum())
    row = sites.run().stages["ridge"].metrics
    assert list(row["failed"]) == ["site-1"]
    assert "set key and site_keys in site.yaml" in capsys.readouterr().err


def test_a_server_without_the_sites_keys_is_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.transport.nodes.keys = {}
    with pytest.raises(BadInput, match="secure_sum needs the sites' keys"):
        sites.run()


def test_sites_refuse_keys_that_the_server_has_replaced(tmp_path: Path) -> None:
    sites = Sites(tmp_path, rounds=0)
    sites.registered[3] = ec.generate_private_key(ec.SECP384R1()).public_key()  # as the other sites know it
    with pytest.raises(FedheadError, match="0 of 4 clients have shared their secrets"):
        sites.run()
    assert not any("send" in entry.get("sent", {}) for entry in sites.ledger())


def test_keys_are_read_from_files(tmp_path: Path) -> None:
    certificates.write(tmp_path, ["127.0.0.1"], ["north", "south"])
    folder = tmp_path / "sites"
    private, public = secure_sum_keys(folder / "south", folder, "south", ["north", "south"])
    assert private.public_key() == public[1]
    with pytest.raises(BadInput, match="is not the private key of"):
        secure_sum_keys(folder / "north", folder, "south", ["north", "south"])
    with pytest.raises(BadInput, match=r"east\.pub is no public key of a site"):
        secure_sum_keys(folder / "south", folder, "south", ["east", "south"])


def test_a_site_with_its_own_architecture_is_left_out(tmp_path: Path) -> None:
    sites = Sites(tmp_path, rounds=0)
    node = sites.grid.nodes[101]
    sites.grid.nodes[101] = dataclasses.replace(node, model={"model": "own"})
    row = sites.run().stages["ridge"].metrics
    assert "has its own architecture" in row["absent"]["site-1"]


def test_a_spec_is_needed_for_keys() -> None:
    with pytest.raises(BadInput, match="set key and site_keys"):
        SiteSecureSum().keys(RunSpec("ab" * 8, {}, ["north"], 2, [1]))


def test_the_listing_of_messages_equals_the_ledger(tmp_path: Path) -> None:
    sites = Sites(tmp_path, stages=[fh.PersonalRidge()])
    sites.run()
    listed = listing.record(sites.world.experiment, listing.synthetic(InputSpec.of(federation())), 1, {})
    for entry in sites.ledger():
        if entry["site"] != "site-0" or entry["kind"] == "hello":
            continue
        exchange = f"{entry['kind']} {entry['algorithm']}"
        for direction, trees in ((messages.DOWN, entry["asked"]), (messages.UP, entry["sent"])):
            message = [e for e in listed.of(exchange, direction) if e.dtype != messages.HEADER]
            seen = {name: tuple(shape) for tree in trees.values() for name, shape in tree["tensors"].items()}
            assert seen == {e.name: e.shape for e in message}
            assert sum(tree["bytes"] for tree in trees.values()) == sum(e.bytes for e in message)
        assert entry["numbers"].keys() <= {e.name for e in listed.of(exchange, messages.UP)}
    masked = [e.name for e in listed.of("work personal_ridge.ridge", messages.UP) if e.bytes]
    assert masked == ["masked"]
    assert "secure" in [e.name for e in listed.of("secure train", messages.UP)]
