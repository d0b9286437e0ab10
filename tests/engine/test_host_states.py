"""Client states in the host's memory give the numbers of those on the device; a CPU stands for the GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from simulations import make_simulation, run
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees
from fedhead.engine.experiment.callbacks import KEEP, STOP, Action, Callback
from fedhead.engine.rounds.observer import Snapshot
from fedhead.engine.rounds.rounds import run_stage
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.states.client_states import ClientStates
from fedhead.engine.states.host_states import Copies, HostStates
from fedhead.methods import METHODS
from fedhead.metrics.records import Row
from fedhead.stages.ccvr import CCVR

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.02, momentum=0.9))
CPU = torch.device("cpu")


def state(value: float) -> Tree:
    return Tree(own=Tree(w=torch.full((2, 3), value), n=torch.tensor(int(value))), c=torch.full((4,), -value))


def states() -> HostStates:
    return HostStates(lambda client: state(0.0), CPU)


def same(one: Tree, other: Tree) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.tensors(), other.tensors(), strict=True))


def simulation(method: str, local: LocalTraining, on_host: bool) -> Simulation:
    made = make_simulation(
        federation(), [network("batch")], METHODS[method](), rounds=5, local=local, participation=0.5
    )
    if on_host:
        made.states = HostStates(made.clients.initial_state, CPU)
    return made


@pytest.mark.parametrize(
    ("method", "persistent"),
    [("scaffold", False), ("fedavg", True), pytest.param("fedrep", False, marks=pytest.mark.slow)],
)
def test_rounds_have_the_same_numbers_and_resume_exactly(method: str, persistent: bool) -> None:
    local = dataclasses.replace(LOCAL, persistent=persistent)
    expected = run(simulation(method, local, on_host=False))
    found: list[Snapshot] = []
    whole = run(simulation(method, local, on_host=True), on_round=found.append)
    again = run(simulation(method, local, on_host=True), resume=found[1])
    for one in (whole, again):
        assert [row["accuracy"] for row in one.rows] == [row["accuracy"] for row in expected.rows]
        assert [row["personal"] for row in one.rows] == [row["personal"] for row in expected.rows]
        assert one.clients.keys() == expected.clients.keys()
        assert all(same(one.clients[k], expected.clients[k]) for k in expected.clients)
        assert same(one.server, expected.server)


def test_a_state_owns_its_memory_and_a_snapshot_stays_as_it_was() -> None:
    mine, given = states(), state(1.0)
    mine[3] = given
    given["c"].zero_()
    snapshot = dict(mine.kept)
    assert same(snapshot[3], state(1.0))
    mine[3] = state(2.0)
    assert same(snapshot[3], state(1.0))
    assert same(mine[3], state(2.0))
    assert same(mine[4], state(0.0))
    assert list(mine.kept) == [3]


@pytest.mark.parametrize("rows", [[0, 1, 2], [4, 1, 3]], ids=["the whole stack", "rows of one run among others"])
def test_rows_of_a_stack_are_kept_as_single_states(rows: list[int]) -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0][: max(rows) + 1]
    stack = Tree(
        own=Tree(w=torch.stack([torch.full((2, 3), v) for v in values]), n=torch.tensor([int(v) for v in values])),
        c=torch.stack([torch.full((4,), -v) for v in values]),
        none=torch.zeros(len(values), 0, 2),
    )
    mine, clients = states(), [7, 3, 5]
    mine.prefetch([3, 8], training=clients)
    mine.keep(clients, StackedTrees(stack, rows))
    expected = {k: Tree(state(values[row]), none=torch.zeros(0, 2)) for k, row in zip(clients, rows, strict=True)}
    assert set(mine._prefetched) == {3}  # wanted in the next round: it stayed on the device
    for each in stack.tensors():
        each.zero_()  # the stack is overwritten by the next round
    snapshot = mine.kept.copy()
    assert same(mine[3], expected[3])
    mine.prefetch([7, 5], training=[])
    for k in clients:
        assert snapshot[k].keys() == expected[k].keys()
        assert all(a.shape == b.shape for a, b in zip(snapshot[k].tensors(), expected[k].tensors(), strict=True))
        assert same(snapshot[k], expected[k])
        assert same(mine[k], expected[k])
    owned = [t.untyped_storage().nbytes() for t in mine.kept[7].tensors()]
    assert max(owned) == 10 * 4  # a state does not keep the memory of the others


def test_a_copy_is_written_to_alone() -> None:
    mine = states()
    mine[0] = state(1.0)
    other = mine.copy()
    assert isinstance(other, HostStates)
    other[0] = state(5.0)
    other[1] = state(6.0)
    assert same(mine[0], state(1.0))
    assert list(mine.kept) == [0]
    assert same(other[0], state(5.0))


def test_states_are_fetched_ahead_and_never_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = states()
    for k in range(4):
        mine[k] = state(k + 1.0)
    fetched: list[int] = []
    plainly = mine._copies.fetch
    monkeypatch.setattr(mine._copies, "fetch", lambda some: fetched.append(len(some)) or plainly(some))
    mine.prefetch([1, 2, 9], training=[2, 3])
    assert fetched == [1]  # 2 is about to be replaced, 9 never took part
    assert set(mine._prefetched) == {1}
    mine[2] = state(7.0)
    assert set(mine._prefetched) == {1, 2}  # the new state stayed on the device
    mine[3] = state(8.0)
    assert [float(mine[k]["c"][0]) for k in range(4)] == [-1.0, -2.0, -7.0, -8.0]
    mine[1] = state(9.0)  # written out of turn: what was fetched is outdated
    assert float(mine[1]["c"][0]) == -9.0
    mine.prefetch([0], training=[])
    assert set(mine._prefetched) == {0}


def test_no_state_is_left_after_all_are_cleared() -> None:
    mine = states()
    for k in range(3):
        mine[k] = state(k + 1.0)
    mine.prefetch([1, 2], training=[2])
    mine[2] = state(9.0)
    mine.clear()
    assert not mine.kept
    assert all(same(mine[k], state(0.0)) for k in range(3))
    mine.prefetch([0, 1], training=[])
    assert all(same(mine[k], state(0.0)) for k in range(3))


class BestFirst(Callback):
    """Keeps the first round's models, and stops after a later one."""

    def after_round(self, row: Row, memory: dict[str, Any]) -> Action | None:
        """Keep round 1, stop after round 3."""
        return {1: KEEP, 3: STOP}.get(row["round"])


def test_a_run_that_ends_with_an_earlier_round_has_that_round_s_states() -> None:
    """Those of clients that took part later, and were fetched for the round after the last, are initial ones again."""
    made = [simulation("ditto", LOCAL, on_host=on_host) for on_host in (False, True)]
    expected, found = (run(one, callbacks=[BestFirst()]) for one in made)
    later = set(made[1].cohort(4)) - set(made[1].cohort(1))
    assert later & ({*made[1].cohort(2), *made[1].cohort(3)}), "else nothing is tested"
    assert list(found.clients) == list(expected.clients) == made[0].cohort(1)
    for k in made[0].clients.holders:
        assert same(found.transport.states[k], expected.transport.states[k])


def test_the_next_cohort_is_fetched_while_this_one_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation("scaffold", LOCAL, on_host=True)
    asked: list[tuple[list[int], list[int]]] = []
    assert isinstance(made.states, HostStates)
    monkeypatch.setattr(made.states, "prefetch", lambda later, now: asked.append((list(later), list(now))))
    run(made)
    cohorts = [made.cohort(number) for number in range(1, 6)]
    assert asked == list(zip([*cohorts[1:], []], cohorts, strict=True))


def test_where_the_device_has_no_memory_states_are_copied_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(simulation("scaffold", LOCAL, on_host=False))

    def full(copies: Copies, states: list[Any]) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(Copies, "fetch", full)
    made = simulation("scaffold", LOCAL, on_host=True)
    found = run(made)
    assert same(found.server, expected.server)
    assert all(same(found.clients[k], expected.clients[k]) for k in expected.clients)
    assert isinstance(made.states, HostStates)
    made.states.prefetch([1, 2], training=[2])
    made.states[2] = state(1.0)
    assert not made.states._prefetched, "nor does a new one stay there"


def test_page_locked_memory_is_reserved_for_those_who_train_and_not_for_a_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stage asks all clients, of whose states there may be more than fit into memory twice."""
    reserved: list[int] = []
    monkeypatch.setattr(Copies, "reserve", lambda copies, like, count: reserved.append(count))
    made = simulation("scaffold", LOCAL, on_host=True)
    run(made)
    rounds = [count for count in reserved if count]
    assert rounds == [len(made.cohort(number)) for number in range(2, 6)], "in round 1 nothing is known of states"
    run_stage(made, CCVR(samples=20, epochs=1))
    assert [count for count in reserved if count] == rounds


def test_on_a_cpu_states_stay_as_they_are() -> None:
    assert type(simulation("scaffold", LOCAL, on_host=False).states) is ClientStates
