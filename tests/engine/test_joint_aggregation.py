"""Means of several runs at once are those of each run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from same_trees import assert_same
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import Diverged
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.stacked_trees import StackedTrees
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_mean import tree_mean
from fedhead.engine.clients.global_model_tests import JointModelTests
from fedhead.engine.rounds import joint_aggregation, rounds
from fedhead.engine.rounds.joint_aggregation import Weighted, finite, means
from fedhead.engine.rounds.rounds import FinishedRun
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.joint.runs import run_together
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.stages.ccvr import CCVR


def item(count: int, seed: int, size: int = 3) -> Weighted:
    generator = torch.Generator().manual_seed(seed)

    def one() -> Tree:
        model = Weights(
            {
                "w": torch.rand(4, size, generator=generator),
                "b": torch.rand((), generator=generator),
                "none": torch.zeros(0, 2),
                "wide": torch.rand(2, generator=generator, dtype=torch.float64),
            },
            buffers=["wide"],
        )
        return Tree(model=model)

    return Weighted([one() for _ in range(count)], [float(k + 1) for k in range(count)])


def test_means_of_rows_of_one_stack_are_those_of_single_trees() -> None:
    single = [item(3, seed) for seed in range(4)]
    trees = [tree for one in single for tree in one.trees]
    stacked = trees[0].map(lambda *rows: torch.stack(rows), *trees[1:])
    rows = [[2, 0, 1], [3, 4, 5], [6, 7, 8], [11, 9, 10]]
    whole = [Weighted(StackedTrees(stacked, own), one.weights) for own, one in zip(rows, single, strict=True)]
    ordered = [Weighted([trees[row] for row in own], one.weights) for own, one in zip(rows, single, strict=True)]
    for found, expected in zip(means(whole), means(ordered), strict=True):
        assert_same(found, expected)
    assert len({one.form for one in whole}) == 1, "they are averaged at once"
    bare = [Weighted(StackedTrees(Tree(s=torch.arange(4.0)), own).under("s"), [1.0, 3.0]) for own in ([0, 1], [2, 3])]
    assert [float(found["value"]) for found in means(bare)] == [0.75, 2.75]
    mixed = means([whole[0], ordered[1], whole[2]])  # rows of a stack, and single trees
    for found, expected in zip(mixed, means(ordered), strict=False):
        assert all(torch.allclose(t, expected.leaves()[name]) for name, t in found.leaves().items())


@pytest.mark.parametrize("memory", [joint_aggregation.MEMORY, 300])
def test_means_of_several_runs(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_aggregation, "MEMORY", memory)  # with 300 bytes two runs at a time
    items = [item(2, 0), item(3, 1), item(2, 2), item(2, 3), item(2, 4, size=5)]
    for found, one in zip(means(items), items, strict=True):
        expected = tree_mean(*one)
        assert found["model"].buffers == expected["model"].buffers
        assert_same(found, expected, atol=1e-7, rtol=1e-6)


def test_only_the_run_whose_numbers_are_not_finite_is_told() -> None:
    good, bad = Tree(w=torch.ones(3)), Tree(w=torch.tensor([1.0, float("inf")]))
    assert finite([good, good]) == [True, True]
    assert finite([good, bad, good]) == [True, False, True]


def test_runs_whose_servers_compute_at_once_end_as_they_would_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    calls: list[tuple[str, int]] = []
    joined = property(lambda self: self.executor.shared)

    def counting(name: str, function: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        return lambda items: calls.append((name, len(items))) or function(items)

    monkeypatch.setattr(Simulation, "_joined", joined)
    monkeypatch.setattr(joint_aggregation, "means", counting("means", means))
    monkeypatch.setattr(joint_aggregation, "finite", counting("finite", finite))
    plainly = JointModelTests.__call__
    monkeypatch.setattr(
        JointModelTests, "__call__", lambda self, tests: counting("tests", lambda all: plainly(self, all))(tests)
    )
    data, model = federation(), network()

    def run(lr: float, executor: Executor) -> FinishedRun:
        local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr))
        return rounds.run(
            Simulation(data, [model], METHODS["fedavg"](), rounds=2, local=local, executor=executor), stages=[CCVR()]
        )

    rates = (0.01, 0.02, 1e30)

    def trial(lr: float) -> Callable[[Executor], FinishedRun | str]:
        def go(member: Executor) -> FinishedRun | str:
            try:
                return run(lr, member)
            except Diverged:
                return "diverged"

        return go

    *found, last = run_together(Stack(), [trial(lr) for lr in rates], mix_hyperparameters=True)
    assert last == "diverged"
    assert calls[:3] == [("means", 3), ("finite", 3), ("tests", 2)]  # replies of one stack are checked after the mean
    assert calls.count(("tests", 2)) == 3  # two rounds and the stage
    for lr, mine in zip(rates, found, strict=False):
        assert isinstance(mine, FinishedRun)
        alone = run(lr, Stack())
        assert_same(mine.server, alone.server, atol=1e-6, rtol=1e-4)
        for row, other in zip(mine.rows, alone.rows, strict=True):
            assert row["accuracy"] == other["accuracy"]
            assert row["test_loss"] == pytest.approx(other["test_loss"], rel=1e-5)
        assert mine.stages["ccvr"].metrics["accuracy"] == alone.stages["ccvr"].metrics["accuracy"]
        assert mine.confusion == alone.confusion
