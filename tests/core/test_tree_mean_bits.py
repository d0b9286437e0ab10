"""The weighted mean of trees is `torch.tensordot` to the last bit, whatever calls it is made of."""

from __future__ import annotations

import math

import pytest
import torch

from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees, tree_mean


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0,), (3,), (5, 7), (4, 3, 3, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("clients", [1, 2, 10, 50])
def test_the_mean_has_the_bits_of_tensordot(shape: tuple[int, ...], dtype: torch.dtype, clients: int) -> None:
    draw = torch.Generator().manual_seed(clients)
    rows = torch.randn(clients, *shape, generator=draw, dtype=torch.float64).to(dtype)
    weights = torch.rand(clients, generator=draw).add(0.1).tolist()
    shares = torch.tensor([w / math.fsum(weights) for w in weights], dtype=dtype)
    expected = torch.tensordot(shares, rows, dims=1)
    for trees in (StackedTrees(Tree(a=rows), range(clients)), [Tree(a=row) for row in rows]):
        found = tree_mean(trees, weights)["a"]
        assert found.shape == expected.shape
        assert torch.equal(found, expected)
