"""Replies: means and sums of what clients sent, be it trees or tensors."""

from __future__ import annotations

import torch

from fedhead.algorithm.phase import Replies
from fedhead.core.tree import Tree


def test_means_and_sums_of_tensors_and_trees() -> None:
    sent = [Tree(tau=torch.tensor(v), model=Tree(w=torch.tensor([v, 0.0]))) for v in (1.0, 4.0)]
    replies = Replies([0, 3], [2.0, 1.0], sent)
    assert replies.mean("tau") == 2.0  # (2 · 1 + 1 · 4) / 3
    assert replies.mean("tau", [1, 1]) == 2.5
    assert torch.equal(replies.mean("model")["w"], torch.tensor([2.0, 0.0]))
    assert replies.sum("tau") == 5.0
