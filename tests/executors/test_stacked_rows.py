"""Rows of stacked tensors are copied alike, however many there are."""

from __future__ import annotations

import pytest
import torch

from fedhead.executors.stack.graph_runner import FEW, StackedRows


@pytest.mark.parametrize("count", [0, 1, FEW, FEW + 1, 20, 25])
def test_rows_are_copied_and_the_others_stay(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    shapes = [(3, 2), (), (4,)]
    source = [torch.rand(30, *shape, generator=generator) for shape in shapes] + [torch.arange(30)]
    to = [torch.zeros(25, *shape) for shape in shapes] + [torch.zeros(25, dtype=torch.int64)]
    rows, of = torch.randperm(25, generator=generator)[:count].tolist(), torch.randperm(30, generator=generator)
    StackedRows(to).overwrite(rows, StackedRows(source), of[:count].tolist())
    for mine, theirs in zip(to, source, strict=True):
        expected = torch.zeros_like(mine)
        for row, other in zip(rows, of.tolist(), strict=False):
            expected[row] = theirs[other]
        assert mine.equal(expected)
