"""Frozen parameters are sent to a client until its first reply is accepted; the counts are those of the messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulations import make_simulation, make_world, run
from small import federation, network
from small_sites import during, same
from tiers import quick

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.engine.rounds.observer import Snapshot
from fedhead.flower.site.site_store import SiteStore
from fedhead.flower.wire import wire
from fedhead.methods import METHODS
from fedhead.models.split_model import SplitModel
from fedhead.stages import STAGES
from fedhead.testing.inprocess import InProcess, InProcessFederation

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9))
SETTINGS = {"rounds": 4, "local": LOCAL, "participation": 0.5}
SITE = "site-3"


def frozen_model() -> SplitModel:
    model = network("batch")
    model.extractor.requires_grad_(False)
    return model


def world(folder: Path, method: str = "fedavg", **changes: Any) -> InProcessFederation:
    stages = changes.pop("stages", ())
    settings = {**SETTINGS, **changes}
    return make_world(federation(), {"own": frozen_model()}, METHODS[method](), settings, folder, stages=stages)


def broadcasts(grid: InProcess) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Return for each exchange the node and the bytes of every message with work."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for message in grid._sent.values():
        header, trees = wire.unpack(message.content)
        if header["kind"] == "work":
            size = sum(tree.nbytes for tree in trees.values())
            found.setdefault((header["algorithm"], header["round"]), []).append((message.metadata.dst_node_id, size))
    return found


@pytest.mark.parametrize("name", quick(["fedavg", "scaffold", "fedrep", "feddyn"], "scaffold"))
def test_every_client_receives_them_once(name: str, tmp_path: Path) -> None:
    stage = STAGES["finetune"]()
    here = world(tmp_path, name, stages=[stage])
    grid = here.grid()
    transport = here.transport(grid, join_seconds=30)
    results = {"flower": run(transport, stages=[stage])}
    for executor in ("loop", "stack"):
        simulation = make_simulation(federation(), [frozen_model()], METHODS[name](), executor=executor, **SETTINGS)
        results[executor] = run(simulation, stages=[stage])
        same(simulation.server, transport.server)
    counts = {
        who: [row["bytes_down"] for row in result.rows] + [result.stages["finetune"].metrics["bytes_down"]]
        for who, result in results.items()
    }
    assert counts["flower"] == counts["loop"] == counts["stack"]
    sent = broadcasts(grid)
    assert [sum(size for _, size in messages) for messages in sent.values()] == counts["flower"]
    frozen = simulation.clients.initial[0].part("extractor").params.nbytes
    trained = sum(simulation.server[entry].nbytes for entry in METHODS[name].broadcast) - frozen
    seen: set[int] = set()
    late = 0
    for (_, number), messages in sent.items():
        for node, size in messages:
            assert size == (trained if node in seen else trained + frozen)
            late += number > 1 and node not in seen
            seen.add(node)
    assert late  # so that a client which joins later is tried, too
    assert len(seen) == 4


def delete(path: Path) -> None:
    path.unlink()


def corrupt(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9)


def replace(path: Path) -> None:
    store = SiteStore(path.parents[2], path.parents[1].name, path.parent.name)
    stored = store.load("frozen")
    assert stored is not None
    store.save("frozen", stored + 1)


@pytest.mark.parametrize("lose", quick([delete, corrupt, replace], corrupt))
def test_a_site_that_lost_them_gets_them_again(
    lose: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = world(tmp_path, participation=1.0)
    grid = here.grid()

    def spoil(now: Snapshot) -> None:
        if now.round == 1:
            lose(SiteStore(tmp_path / "state", here.identity, SITE).path / "frozen.safetensors")

    result = run(here.transport(grid, join_seconds=30), on_round=spoil)
    assert [row.get("failed", {}).keys() for row in result.rows] == [set(), {SITE}, set(), set()]
    assert "it has lost the frozen parameters, which are sent again" in result.rows[1]["failed"][SITE]
    assert "(frozen)" in capsys.readouterr().err
    sizes = [dict(messages)[103] for messages in broadcasts(grid).values()]
    assert sizes[0] == sizes[2] > sizes[1] == sizes[3]
    assert [row["bytes_down"] for row in result.rows] == [
        sum(size for _, size in messages) for messages in broadcasts(grid).values()
    ]


def test_a_site_whose_reply_did_not_count_gets_them_again(tmp_path: Path) -> None:
    here = world(tmp_path, participation=1.0)
    grid = here.grid()
    grid.faults[103] = during("work", 1, lambda message, honest: None)
    result = run(here.transport(grid, join_seconds=30, round_seconds=0.05))
    assert SITE in result.rows[0]["failed"]
    assert not any("failed" in row for row in result.rows[1:])
    sizes = [dict(messages)[103] for messages in broadcasts(grid).values()]
    assert sizes[0] == sizes[1] > sizes[2] == sizes[3]
