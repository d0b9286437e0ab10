"""Replies: means and sums of what clients sent, be it trees or tensors."""

from __future__ import annotations

import pytest
import torch

from fedhead.algorithm.phase import Replies
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree, stack
from fedhead.core.tree.tree_rows import StackedTrees


def test_means_and_sums_of_tensors_and_trees() -> None:
    sent = [Tree(tau=torch.tensor(v), model=Tree(w=torch.tensor([v, 0.0]))) for v in (1.0, 4.0)]
    replies = Replies([0, 3], [2.0, 1.0], sent)
    assert replies.mean("tau") == 2.0  # (2 · 1 + 1 · 4) / 3
    assert replies.mean("tau", [1, 1]) == 2.5
    assert torch.equal(replies.mean("model")["w"], torch.tensor([2.0, 0.0]))
    assert replies.sum("tau") == 5.0


@pytest.mark.parametrize("whole", [False, True])
def test_what_has_no_mean_is_refused(whole: bool) -> None:
    sent = [Tree(tau=torch.tensor(v), model=Tree(n=torch.tensor([int(v)]))) for v in (1.0, 4.0, 2.0)]
    replies = Replies([0, 3, 4], [2.0, 1.0, 1.0], StackedTrees(stack(sent), range(3)) if whole else sent)
    with pytest.raises(BadInput, match=r"'model/n', which is torch\.int64: send it as \.float\(\)"):
        replies.mean("model")  # torch would have weighted them by shares that are rounded to 0
    with pytest.raises(BadInput, match="mean of 'tau' with 1 weights for 3 replies"):
        replies.mean("tau", [1.0])  # torch.tensordot would have added the replies up
    with pytest.raises(BadInput, match="sum is not positive"):
        replies.mean("tau", [0.0, 0.0, 0.0])
