"""Trees as rows of a stack: whatever is computed of all of them is what the single trees give, bit for bit."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from fedhead.algorithm.phase import Replies
from fedhead.core.tree.schema import schema
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_rows import StackedTrees, tree_mean


def stacked(count: int) -> Tree:
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(count, *shape, generator=generator, dtype=dtype)

    model = Weights(
        {
            "image": numbers(4, 3, 5, 5).flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (count, 4)),
            "turned": numbers(7, 3).transpose(1, 2),
            "same": torch.rand(6, generator=generator).expand(count, 6),
            "none": numbers(0, 2),
            "wide": numbers(dtype=torch.float64),
        },
        buffers=["wide"],
    )
    return Tree(model=model, tau=numbers())


@pytest.mark.parametrize("rows", [range(9), [3, 0, 8, 1, 7], [0]])
def test_means_sizes_and_forms_are_those_of_the_single_trees(rows: list[int]) -> None:
    trees, weights = StackedTrees(stacked(9), rows), [1.0 + row for row in rows]
    single = [tree.clone() for tree in trees]
    assert len(single) == len(trees) == len(rows)
    expected, found = tree_mean(single, weights), tree_mean(trees, weights)
    assert isinstance(found["model"], Weights)
    assert found["model"].buffers == {"wide"}
    for name, value in expected.leaves().items():
        assert torch.equal(found.leaves()[name], value), name
    assert trees.nbytes == sum(tree.nbytes for tree in single)
    assert trees.schema() == schema(single[0])


def test_replies_take_means_of_stacked_trees_and_tensors() -> None:
    trees = StackedTrees(stacked(3), [2, 0, 1])
    single = Replies([0, 1, 5], [2.0, 3.0, 1.0], list(trees))
    replies = Replies([0, 1, 5], [2.0, 3.0, 1.0], StackedTrees(trees.stacked, trees.rows))
    assert torch.equal(replies.mean("tau"), single.mean("tau"))
    for name, value in single.mean("model", [1, 1, 4]).items():
        assert torch.equal(replies.mean("model", [1, 1, 4])[name], value)
    assert "_trees" not in vars(replies.sent)  # they were not taken apart
    assert torch.equal(replies.sum("tau"), single.sum("tau"))
    assert replies.sent is replies.sent


def test_replies_of_a_stack_are_copied_and_pickled() -> None:
    replies = Replies([0, 1], [1.0, 1.0], StackedTrees(stacked(2), range(2)))
    for other in (copy.deepcopy(replies), pickle.loads(pickle.dumps(replies)), replace(replies, samples=[1.0, 1.0])):
        assert torch.equal(other.mean("tau"), replies.mean("tau"))
    with pytest.raises(FrozenInstanceError):
        replies.sent = []  # type: ignore[misc]  # it must raise
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'sent'"):
        Replies([0, 1], [1.0, 1.0])  # type: ignore[call-arg]  # it must raise
    assert "__getattr__" not in vars(Replies)  # with it, a type checker would let any misspelled name pass
