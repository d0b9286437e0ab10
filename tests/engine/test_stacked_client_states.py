"""States that lie in one stack are taken apart only when single ones are asked for."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

import fedhead as fh
from fedhead.algorithm.phase import Reply
from fedhead.core.tree import tree_rows
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees
from fedhead.engine.rounds.observer import Snapshot
from fedhead.engine.states.client_states import ClientStates
from fedhead.engine.states.stacked_client_states import StackedClientStates
from fedhead.executors.stack.stack import Stack


def stack(first: float) -> StackedTrees:
    return StackedTrees(Tree(m=torch.arange(first, first + 3)), [2, 0, 1])


def values(states: StackedClientStates) -> dict[int, float]:
    """Read states without taking them apart."""
    return {k: float(state["m"]) for k, state in states.copy().items()}


def test_states_are_rows_of_a_stack_or_their_own() -> None:
    states = StackedClientStates({5: Tree(m=torch.tensor(9.0))})
    states.keep([4, 5, 6], stack(0.0))
    assert values(states) == {5: 0.0, 4: 2.0, 6: 1.0}
    assert list(states) == [5, 4, 6], "in the order in which clients took part first"
    found = states.stacked([6, 4])
    assert found is not None
    assert found.copied_rows()["m"].tolist() == [1.0, 2.0]
    states[6] = Tree(m=torch.tensor(7.0))
    assert values(states) == {5: 0.0, 4: 2.0, 6: 7.0}
    assert states.stacked([4, 6]) is None
    assert states.stacked([4, 8]) is None, "one that never took part"


def test_a_copy_stays_as_it_is() -> None:
    states = StackedClientStates()
    states.keep([1, 2, 3], stack(0.0))
    before = states.copy()
    states.keep([1, 2, 3], stack(10.0))
    states[2] = Tree(m=torch.tensor(7.0))
    assert values(before) == {1: 2.0, 2: 0.0, 3: 1.0}
    assert values(states) == {1: 12.0, 2: 7.0, 3: 11.0}


def test_the_memory_of_a_stack_is_released_with_its_last_state() -> None:
    rows = stack(0.0)
    held = weakref.ref(rows.stacked["m"])
    states = StackedClientStates()
    states.keep([1, 2, 3], rows)
    del rows
    for k in (1, 2):
        states[k] = Tree(m=torch.tensor(7.0))
    assert held() is not None
    del states[3]
    assert held() is None


def test_rows_that_are_trained_do_not_share_memory_with_what_is_kept() -> None:
    states = ClientStates(lambda client: Tree(m=torch.zeros(())))
    states.keep([1, 2, 3], rows := stack(0.0))
    found = states.of([1, 2, 3])
    assert isinstance(found, StackedTrees)
    found.copied_rows()["m"].zero_()
    assert rows.stacked["m"].tolist() == [0.0, 1.0, 2.0]


def test_rounds_of_all_clients_take_no_stack_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.random.RandomState(0).rand(120, 6).astype("float32"), np.arange(120) % 3
    fed = fh.Federation.from_arrays(x, y, "dirichlet(1)", clients=4, seed=0)
    taken_apart, unstack = list[int](), tree_rows.unstack
    monkeypatch.setattr(tree_rows, "unstack", lambda tree, n: taken_apart.append(n) or unstack(tree, n))
    snapshots: list[Snapshot] = []
    settings = {"rounds": 3, "momentum": 0.9, "persistent_optimizer": True, "batch_size": 8}
    run = fh.run(fed, "mlp", fh.FedAvg(), executor="stack", on_round=snapshots.append, **settings)
    assert not taken_apart
    loop = fh.run(fed, "mlp", fh.FedAvg(), executor="loop", **settings)
    for k, state in loop.states.items():
        for name, value in state.leaves().items():
            torch.testing.assert_close(snapshots[-1].clients[k].leaves()[name], value)
            torch.testing.assert_close(run.states[k].leaves()[name], value)
    assert taken_apart


class KeepsReceived(fh.FedAvg):
    """All its clients keep the same tensors."""

    def finish(self, w: fh.Weights, client: fh.Client) -> Reply:
        return Reply(send=Tree(model=w), keep=Tree(received=client.received["model"], one=torch.ones(2)))


@pytest.mark.parametrize("count", [1, 4])
def test_what_all_clients_keep_alike_is_of_each_its_own(count: int) -> None:
    x, y = np.random.RandomState(0).rand(120, 6).astype("float32"), np.arange(120) % 3
    fed = fh.Federation.from_arrays(x, y, "iid", clients=count, seed=0)
    snapshots: list[Snapshot] = []
    found = fh.run(fed, "mlp", KeepsReceived(), rounds=2, executor=Stack(), on_round=snapshots.append)
    others = [snapshots[0].server, *(found.states[k] for k in range(1, count))]
    before = [state.clone() for state in others]
    for t in found.states[0].tensors():
        t.fill_(7)
    for state, old in zip(others, before, strict=True):
        for name, value in old.leaves().items():
            assert torch.equal(state.leaves()[name], value)
