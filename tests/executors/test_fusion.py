"""Fusion of normalizations with what follows them in the graph of a step; tests/gpu compares the numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import Node

from fedhead.executors.compiling.step import trace
from fedhead.executors.kernels import normalize
from fedhead.executors.kernels.fusion import fuse

SHAPE = (2, 4, 3, 5)  # clients, samples, positions, channels


def norm(x: Tensor) -> Tensor:
    own = torch.ones(SHAPE[0], SHAPE[-1])
    found: Tensor = normalize.stacked(x, None, own, own, own, own, None, 1e-5, 2, False)
    return found


def fused(function: Callable[[Tensor, Tensor], Tensor]) -> tuple[list[Node], list[str]]:
    """Return the normalizations of a fused graph, and the names of its other operators."""

    def step(*flat: Tensor) -> None:
        flat[0].copy_(function(*flat[1:]))

    graph = fuse(trace(step, [torch.ones(SHAPE) for _ in range(3)])).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    ours = [node for node in calls if str(node.target) == "fedhead.stacked_normalize.default"]
    return ours, [str(node.target) for node in calls if node not in ours]


@pytest.mark.parametrize("added", [False, True])
def test_a_relu_and_an_addition_before_it(added: bool) -> None:
    (found,), others = fused(lambda x, skip: torch.relu(norm(x) + skip) if added else torch.relu(norm(x)))
    assert (found.args[1] is not None, found.args[9]) == (added, True)
    assert not {"aten.relu.default", "aten.add.Tensor"} & set(others)


def test_views_on_the_way_are_undone_for_what_is_added() -> None:
    (found,), others = fused(lambda x, skip: torch.relu(norm(x).movedim(-1, 1) + skip.movedim(-1, 1)).movedim(1, -1))
    skip = found.args[1]
    assert isinstance(skip, Node)
    assert skip.args[1] == [0, 2, 3, 1], "channels last again"
    assert found.args[9]
    assert "aten.relu.default" not in others


@pytest.mark.parametrize(
    "function",
    [
        lambda x, skip: torch.relu(norm(x)) + (y := norm(skip)) + torch.relu(y),
        lambda x, skip: torch.relu(norm(x)) + torch.relu(norm(skip) + skip[:, :1]),
        lambda x, skip: torch.relu(norm(x)) + norm(skip).sigmoid(),
    ],
    ids=["used twice", "another shape", "another function"],
)
def test_what_can_not_be_fused_stays(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    found, _ = fused(function)
    assert [(node.args[1], node.args[9]) for node in found] == [(None, True), (None, False)]
