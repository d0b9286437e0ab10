"""Numbers that no client could have computed leave out that client alone, in a simulation as at real sites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import with_reply
from simulations import make_simulation, run
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import Float16Upload
from fedhead.calibration import statistics
from fedhead.calibration.symmetric import pack
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.rounds.transport import Context, Received
from fedhead.executors.loop import Loop
from fedhead.methods import METHODS
from fedhead.stages.ccvr import CCVR

LOCAL = LocalTraining(epochs=1, batch_size=4)
Lie = Callable[[Tree], Tree]


class Lying(Simulation):
    """A simulation in which client 3 sends something else than it computed."""

    lie: Lie
    stage_only = True

    def exchange(self, context: Context, cohort: list[int]) -> Received:
        received = super().exchange(context, cohort)
        if isinstance(context.algorithm, CCVR) or not self.stage_only:
            reply = received.replies[3]
            received = with_reply(received, 3, reply._replace(send=self.lie(reply.send)))
        return received


def simulated(lie: Lie, method: str = "fedavg", stage: CCVR | None = None, **settings: Any) -> FinishedRun:
    head = METHODS[method].head
    settings = {"rounds": 1, "local": LOCAL, "kind": Lying, **settings}
    simulation = make_simulation(federation(), [network("group", head)], METHODS[method](), **settings)
    assert isinstance(simulation, Lying)
    simulation.lie, simulation.stage_only = lie, stage is not None
    simulation.using(Loop())
    return run(simulation, stages=[] if stage is None else [stage])


def of_statistics(change: Lie) -> Lie:
    return lambda send: send.replace(statistics=change(send["statistics"]))


def indefinite(found: Tree) -> Tree:
    """Large where the diagonal says nothing."""
    d = found["sum"].shape[1]
    outer = statistics.unpack(found["outer"], d).clone()
    c = int(found["count"].argmax())
    outer[c, 0, 1] = outer[c, 1, 0] = 10 * outer[c].diagonal().abs().max()
    return found.replace(outer=pack(outer))


LIES: dict[str, tuple[Lie, str]] = {
    "negative": (of_statistics(lambda s: s.replace(count=-s["count"])), "not negative"),
    "a part of a sample": (of_statistics(lambda s: s.replace(count=s["count"] * 0.5)), "whole"),
    "more than it has": (of_statistics(lambda s: s * 1000), "but the client has 14"),
    "sums alone": (of_statistics(lambda s: s.replace(count=s["count"] * 0)), "has sums but no samples"),
    "variances": (of_statistics(lambda s: s.replace(outer=-s["outer"])), "not positive semi-definite"),
    "covariances": (of_statistics(indefinite), "not positive semi-definite"),
    "architecture": (lambda send: send.replace(architecture=send["architecture"] + 1), "another architecture"),
}


@pytest.mark.parametrize("case", LIES)
def test_impossible_statistics_leave_one_client_out_of_the_stage(case: str) -> None:
    lie, reason = LIES[case]
    row = simulated(lie, stage=CCVR(samples=5, epochs=1)).stages["ccvr"].metrics
    assert list(row["failed"]) == ["3"]
    assert reason in row["failed"]["3"]
    assert row["participants"] == 3


@pytest.mark.parametrize("method", ["fedproto", "fednh"])
@pytest.mark.parametrize("factor", [-1.0, 1e6])
def test_impossible_prototypes_leave_one_client_out_of_the_round(method: str, factor: float) -> None:
    result = simulated(lambda send: send.replace(counts=send["counts"] * factor), method)
    assert list(result.rows[0]["failed"]) == ["3"]


def test_prototypes_that_are_too_long_leave_one_client_out() -> None:
    result = simulated(lambda send: send.replace(prototypes=send["prototypes"] * 1e6), "fednh")
    assert "longer than 1" in result.rows[0]["failed"]["3"]


def test_an_upload_that_spares_sums_lets_them_be_checked() -> None:
    row = (
        simulated(LIES["negative"][0], stage=CCVR(samples=5, epochs=1), uploads=[Float16Upload()])
        .stages["ccvr"]
        .metrics
    )
    assert list(row["failed"]) == ["3"]
    rounded = CCVR(samples=5, epochs=1, covariance="low-rank", rank=2)  # no sums: half precision rounds them
    assert "failed" not in simulated(lambda send: send, stage=rounded, uploads=[Float16Upload()]).stages["ccvr"].metrics


# -- small classes ------------------------------------------------------------------------------------
@pytest.mark.parametrize("executor", ["loop", "stack"])
@pytest.mark.parametrize(
    ("method", "stage"),
    [("fedavg", CCVR(samples=5, epochs=1)), ("fedproto", None), ("fednh", None)]
    + [("fedavg", CCVR(samples=5, epochs=1, covariance=kind, rank=2)) for kind in ("diagonal", "low-rank")],
    ids=["ccvr", "fedproto", "fednh", "diagonal", "low-rank"],
)
def test_rows_of_small_classes_do_not_leave_a_client(method: str, stage: CCVR | None, executor: str) -> None:
    least, whole = 4, federation()
    left: dict[int, Tree] = {}

    class Watching(Simulation):
        def exchange(self, context: Context, cohort: list[int]) -> Received:
            received = super().exchange(context, cohort)
            if context.algorithm.class_rows:
                left.update({k: reply.send for k, reply in received.replies.items()})
            return received

    model = network("group", METHODS[method].head)
    settings = {"rounds": 1, "local": LOCAL, "min_class_count": least, "executor": executor}
    simulation = make_simulation(whole, [model], METHODS[method](), kind=Watching, **settings)
    result = run(simulation, stages=[] if stage is None else [stage])
    row = result.rows[0] if stage is None else result.stages["ccvr"].metrics
    counts = torch.as_tensor(whole.counts())
    small = {str(k): torch.nonzero((counts[k] > 0) & (counts[k] < least)).flatten().tolist() for k in left}
    assert any(small.values())
    assert row["left_out"] == {k: classes for k, classes in small.items() if classes}
    for k, sent in left.items():
        rows = sent["statistics"] if stage is not None else Tree({n: sent[n] for n in METHODS[method].class_rows})
        for tensor in rows.values():
            assert not tensor[counts[k] < least].any()
            assert tensor[counts[k] >= least].any() or not (counts[k] >= least).any()


def test_a_site_leaves_small_classes_out_and_the_server_s_record_says_so(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from simulations import make_world

    settings = {"rounds": 1, "local": LOCAL}
    stage = CCVR(samples=5, epochs=1)
    here = make_world(
        federation(), {"own": network("group")}, METHODS["fedavg"](), settings, tmp_path, [stage], min_class_count=4
    )
    over_flower = run(here.transport(here.grid()), stages=[stage]).stages["ccvr"]
    simulation = make_simulation(federation(), [network("group")], METHODS["fedavg"](), min_class_count=4, **settings)
    simulated = run(simulation.using(Loop()), stages=[stage]).stages["ccvr"]
    assert over_flower.metrics["left_out"] == {f"site-{k}": v for k, v in simulated.metrics["left_out"].items()}
    for name, t in simulated.server["calibrated"].leaves().items():
        torch.testing.assert_close(t, over_flower.server["calibrated"].leaves()[name], atol=1e-6, rtol=1e-6)


def test_an_impossible_statistic_of_a_site_leaves_it_out_of_the_stage(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from simulations import make_world
    from small_sites import changed_response

    from fedhead.flower.wire import wire

    stage = CCVR(samples=5, epochs=1)
    settings = {"rounds": 1, "local": LOCAL}
    here = make_world(federation(), {"own": network("group")}, METHODS["fedavg"](), settings, tmp_path, [stage])
    grid = here.grid()

    def lie(header: dict[str, Any], trees: dict[str, Any]) -> None:
        trees["send"] = LIES["covariances"][0](trees["send"])

    def fault(message: Any, honest: Callable[[], Any]) -> Any:
        header, _ = wire.unpack(message.content)
        asked = (header["kind"], header["algorithm"])
        return changed_response(honest(), lie) if asked == ("work", "ccvr") else honest()

    grid.faults[103] = fault
    row = run(here.transport(grid), stages=[stage]).stages["ccvr"].metrics
    assert list(row["failed"]) == ["site-3"]
    assert "not positive semi-definite" in row["failed"]["site-3"]
