"""Symmetric matrices stored as their upper triangles, which halves their size."""

from __future__ import annotations

import torch
from torch import Tensor


def triangle(d: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the row and column indices of the upper triangle of a d×d matrix, in storage order."""
    rows, columns = torch.triu_indices(d, d, device=device)
    return rows, columns


def diagonal_places(d: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the indices of the diagonal of a d×d matrix in its stored upper triangle.

    >>> diagonal_places(3).tolist()
    [0, 3, 5]
    """
    row = torch.arange(d, device=device)
    return row * d - row * (row - 1) // 2


def pack(matrix: Tensor) -> Tensor:
    """Extract the upper triangles of symmetric matrices: [..., d, d] to [..., d(d+1)/2]."""
    rows, columns = triangle(matrix.shape[-1], matrix.device)
    return matrix[..., rows, columns]


def unpack(packed: Tensor, d: int) -> Tensor:
    """Rebuild symmetric matrices from their upper triangles: [..., d(d+1)/2] to [..., d, d]."""
    index = torch.arange(d, device=packed.device)
    upper = (index * d - index * (index + 1) // 2)[:, None] + index
    return packed[..., torch.where(index[:, None] <= index, upper, upper.mT)]


def classes_at_once(features: int) -> int:
    """Return the number of classes whose full matrices fit into 8 MB, at least 1."""
    return max(1, 2**20 // features**2)
