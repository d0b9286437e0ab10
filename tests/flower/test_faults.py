"""Faults between server and sites, on the in-process grid: named, not averaged, the others go on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict
from simulations import make_world, run
from small import federation, network
from small_sites import SETTINGS, changed, changed_response, during, nan, same, whole, without, world

from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import FedheadError
from fedhead.core.system.version import VERSION
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.observer import Snapshot
from fedhead.flower import factory
from fedhead.flower.server.messaging import Failure
from fedhead.flower.site.site_store import SiteStore
from fedhead.flower.wire import wire
from fedhead.methods import METHODS
from fedhead.testing.inprocess import InProcess


def test_a_client_that_raises(tmp_path: Path) -> None:
    here, said = world(tmp_path), []

    def broken(spec: Any, number: int) -> Any:
        raise RuntimeError("patient 4711 has no label")

    grid = here.grid()
    good = grid.nodes[101]
    bad = copy.copy(good)
    object.__setattr__(bad, "site_run", broken)

    def fault(message: Message, honest: Callable[[], RecordDict]) -> RecordDict:
        grid.nodes[101] = bad
        made = honest()
        grid.nodes[101] = good
        return made

    grid.faults[101] = during("work", 2, fault)
    transport = here.transport(grid, said)
    result = run(transport)
    assert "an unexpected error (error, reference " in result.rows[1]["failed"]["site-1"]
    assert not any("4711" in line for line in said)  # what a foreign error says may be data: it stays at the site
    same(without(here, 1, 2), transport.server)


def test_an_error_that_flower_reports(tmp_path: Path) -> None:
    here = world(tmp_path)
    grid = here.grid()
    grid.faults[103] = during("work", 2, lambda message, honest: Error(5, "the node is gone"))
    transport = here.transport(grid)
    result = run(transport)
    assert "code 5" in result.rows[1]["failed"]["site-3"]
    same(without(here, 3, 2), transport.server)


def test_a_client_that_never_answers(tmp_path: Path) -> None:
    here = world(tmp_path)
    grid = here.grid()
    grid.faults[103] = during("work", 2, lambda message, honest: None)
    transport = here.transport(grid, round_seconds=0.3)
    result = run(transport)
    assert "no response within" in result.rows[1]["failed"]["site-3"]
    same(without(here, 3, 2), transport.server)


def test_a_lost_answer_leaves_no_trace_in_the_clients_state(tmp_path: Path) -> None:
    """The site did its work and stored its state, but the server never heard: the next round starts from before."""
    here = world(tmp_path)
    grid = here.grid()

    def lost(message: Message, honest: Callable[[], RecordDict]) -> Error:
        honest()
        return Error(8, "lost on the way")

    grid.faults[103] = during("work", 2, lost)
    transport = here.transport(grid)
    run(transport)
    same(without(here, 3, 2), transport.server)


def test_too_few_replies_are_asked_for_again(tmp_path: Path) -> None:
    here, said = world(tmp_path), []
    grid = here.grid()
    tries = {"n": 0}

    def once(message: Message, honest: Callable[[], RecordDict]) -> RecordDict | Error:
        tries["n"] += 1
        return Error(2, "not today") if tries["n"] == 1 else honest()

    grid.faults[103] = during("work", 2, once)
    transport = here.transport(grid, said, quorum=4)
    result = run(transport)
    assert tries["n"] == 2
    assert not any("failed" in row for row in result.rows)
    same(whole(here), transport.server)


def test_without_a_quorum_the_run_stops_and_says_why(tmp_path: Path) -> None:
    here = world(tmp_path)
    grid = here.grid()
    grid.faults[103] = during("work", 2, changed(nan))
    transport = here.transport(grid, quorum=4)
    before: list[Tree] = []
    with pytest.raises(FedheadError, match=r"round 2 has no quorum: 3 of 4.*site-3.*not finite.*then resume"):
        run(transport, on_round=lambda now: before.append(now.server))
    assert len(before) == 1
    same(before[0], transport.server)  # nothing of the failed round was taken over


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 2])
def test_a_resumed_server_ends_as_if_it_had_not_stopped(stop: int, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    here = world(tmp_path)
    grid, kept = here.grid(), []

    def checkpoint(now: Snapshot) -> None:
        kept.append(copy.deepcopy(now))
        if now.round == stop + 1:
            kept.pop()  # killed before this checkpoint was written: the sites are a round ahead of it
            raise Killed

    with pytest.raises(Killed):
        run(here.transport(grid), on_round=checkpoint)
    resumed = here.transport(grid)
    assert kept[-1].round == stop
    run(resumed, resume=kept[-1])
    other = make_world(federation(), here.models, here.experiment.method, SETTINGS, tmp_path / "other")
    straight = other.transport(other.grid())
    run(straight)
    same(straight.server, resumed.server)


def test_a_site_that_comes_back_as_another_node_keeps_its_state(tmp_path: Path) -> None:
    here, said = world(tmp_path), []
    grid = here.grid()
    transport = here.transport(grid, said)

    def move(now: Snapshot) -> None:
        if now.round == 1:
            grid.nodes[999] = here.site(3)
            del grid.nodes[103]

    run(transport, on_round=move)
    assert any("site-3 has come back" in line for line in said)
    same(whole(here), transport.server)


def test_the_record_names_sites_that_are_not_there(tmp_path: Path) -> None:
    here = world(tmp_path)
    grid = here.grid()
    transport = here.transport(grid)

    def leave_and_return(now: Snapshot) -> None:
        if now.round == 1:
            del grid.nodes[103]
        if now.round == 2:
            grid.nodes[103] = here.site(3)

    result = run(transport, on_round=leave_and_return)
    away = [row["absent"] for row in result.rows]
    assert ["site-3" in names for names in away] == [False, True, False]
    assert away[1]["site-3"] == "it is not connected"
    assert all("it holds no training samples (no-samples, reference" in names["site-2"] for names in away)
    assert not any("failed" in row for row in result.rows)
    same(without(here, client=3, round=2), transport.server)


def test_a_site_that_lost_its_state_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = world(tmp_path)
    transport = here.transport(here.grid())

    def lose(now: Snapshot) -> None:
        if now.round == 1:
            for path in SiteStore(tmp_path / "state", here.identity, "site-3").path.iterdir():
                path.unlink()

    result = run(transport, on_round=lose)
    assert "its stored state can't be read (state, reference " in result.rows[1]["failed"]["site-3"]
    assert "state of site site-3 after round 1 is not in" in capsys.readouterr().err


def test_two_nodes_of_one_name_are_both_left_out(tmp_path: Path) -> None:
    here, said = world(tmp_path), []
    grid = here.grid()
    grid.nodes[555] = here.site(1)
    transport = here.transport(grid, said)
    run(transport)
    assert (
        sum(line.startswith("site site-1 (node ") and "two nodes call themselves site-1" in line for line in said) == 2
    )
    assert "site-1" not in transport.nodes.nodes


def test_a_stranger_and_a_site_without_samples_are_left_out_by_name(tmp_path: Path) -> None:
    here, said = world(tmp_path), []
    grid = here.grid()
    grid.nodes[555] = here.site(1, name="mallory")
    run(here.transport(grid, said))
    assert any("node 555 is left out: its name is not among the server's sites" in line for line in said)
    assert any("site site-2 (node 102) is left out: it holds no training samples" in line for line in said)
    assert not any("mallory" in line for line in said)  # what a site calls itself stays there if nobody knows it


def test_another_version_of_the_server_is_named_at_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, said = world(tmp_path), []
    transport = here.transport(here.grid(), said)
    object.__setattr__(transport.spec, "fedhead", "9.9")
    with pytest.raises(FedheadError, match="0 of 5 sites"):
        run(transport)
    assert any("it runs another version of fedhead (version, reference " in line for line in said)
    told = f"the server runs fedhead 9.9, this site {VERSION}: install fedhead==9.9"
    assert told in capsys.readouterr().err


def test_a_model_that_the_method_cant_average_is_refused_by_name(tmp_path: Path) -> None:
    models = {"own": network("group"), "other": network("batch")}
    here, said = (
        make_world(federation(), models, METHODS["fedavg"](), SETTINGS, tmp_path, own={3: "other"}),
        [],
    )
    run(here.transport(here.grid(), said))
    assert any("site site-3" in line and "averages" in line for line in said)


def test_nothing_diverged_leaves_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**SETTINGS, "local": LocalTraining(epochs=3, batch_size=4, optimizer=SGD(lr=1e18))}
    here = make_world(federation(), {"own": network("group")}, METHODS["fedavg"](), settings, tmp_path)
    with pytest.raises(FedheadError, match="no quorum"):
        run(here.transport(here.grid(), attempts=1))
    assert "not finite any more" in capsys.readouterr().err
    assert not list((tmp_path / "state").rglob("state-*"))


def test_a_site_that_was_fixed_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedhead.flower.server import node_registry

    here, said = world(tmp_path, "fedavg"), []
    grid = here.grid()
    good = grid.nodes[103]
    grid.nodes[103] = factory.site_of(str(tmp_path / "site-3" / "site.yaml"))  # there is no such file

    def fix(now: Snapshot) -> None:
        if now.round == 1:
            grid.nodes[103] = good
            transport.nodes.retries[103] = (0.0, 60.0)  # a minute later

    transport = here.transport(grid, said)
    result = run(transport, on_round=fix)
    assert [row["participants"] for row in result.rows] == [3, 4, 4]
    assert sum("site site-3 (node 103) is left out: its site.yaml" in line for line in said) == 1
    registry = node_registry.NodeRegistry(["a"])
    for wait in (60, 120, 240):
        registry.refuse(7, Failure("because", "a"))
        assert registry.retries[7][1] == wait
    assert registry.unknown_nodes({7}) == []
    registry.retries[7] = (0.0, 240.0)
    assert registry.unknown_nodes({7}) == [7]
    registry.refuse(7, Failure("no response"))  # it would only be waited for again
    registry.retries[7] = (0.0, 240.0)
    assert registry.unknown_nodes({7}) == []


def test_a_node_that_was_offline_joins_when_it_is_back(tmp_path: Path) -> None:
    """A registered node keeps its number: it may be connected again before the others have answered."""
    here, said = world(tmp_path, "fedavg"), []
    grid = here.grid()

    def offline(message: Message, honest: Callable[[], RecordDict]) -> Error:
        del grid.faults[103]
        return Error(5, "no heartbeat")

    grid.faults[103] = offline
    result = run(here.transport(grid, said))
    assert [row["participants"] for row in result.rows] == [4, 4, 4]
    assert [line for line in said if "node 103" in line] == ["node 103 is left out: Flower says no heartbeat (code 5)"]


def test_a_site_whose_data_changed_is_asked_again_what_it_holds(tmp_path: Path) -> None:
    here, said = world(tmp_path, "fedavg"), []
    grid = here.grid()

    def fewer(message: Message, honest: Callable[[], RecordDict]) -> RecordDict:
        header, _ = wire.unpack(message.content)
        seen.append(header["kind"])
        return changed_response(honest(), lambda header, trees: header.update(samples=9)) if len(seen) > 3 else honest()

    seen: list[str] = []
    grid.faults[103] = fewer
    result = run(here.transport(grid, said))
    assert seen[:6] == ["hello", "work", "test", "work", "hello", "test"]
    assert [row["participants"] for row in result.rows] == [4, 3, 4]
    assert "it is asked again" in result.rows[1]["failed"]["site-3"]


def test_the_grid_can_lose_every_node(tmp_path: Path) -> None:
    here = world(tmp_path)
    with pytest.raises(FedheadError, match="0 of 5 sites are there"):
        run(here.transport(InProcess({})))
