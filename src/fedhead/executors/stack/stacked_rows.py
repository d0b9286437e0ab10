"""Rows of several tensors with a client axis, overwritten with few kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedhead.core.tree.foreach import copy_all
from fedhead.core.tree.transfer import to_device

FEW = 8  # rows; up to so many are copied by one kernel per dtype, more of them by two kernels per tensor


class StackedRows:
    """Tensors with a leading client axis, of whose rows some are overwritten at a time.

    Args:
        tensors: The tensors, of equal length.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.tensors = list(tensors)
        self._views: dict[int, list[Tensor]] = {}  # of single rows; to make those of all rows takes a host long

    def _row(self, row: int) -> list[Tensor]:
        if row not in self._views:
            self._views[row] = [t[row] for t in self.tensors]
        return self._views[row]

    def overwrite(self, rows: Sequence[int], source: StackedRows, of: Sequence[int]) -> None:
        """Overwrite some rows of all tensors.

        Args:
            rows: Rows to overwrite, each once.
            source: Tensors of the same shapes and types but for their length.
            of: Rows of `source` to copy, one for each of `rows`.
        """
        if not self.tensors or not rows:
            return
        every = list(range(len(self.tensors[0])))
        pairs = sorted(zip(rows, of, strict=True))
        rows, of = [row for row, _ in pairs], [other for _, other in pairs]
        if rows == of == every and len(source.tensors[0]) == len(every):
            copy_all(zip(self.tensors, source.tensors, strict=True))
        elif rows == every:
            at = to_device(of, self.tensors[0].device)
            for mine, theirs in zip(self.tensors, source.tensors, strict=True):
                torch.index_select(theirs, 0, at, out=mine)
        elif len(rows) > FEW:
            to, at = (to_device(places, self.tensors[0].device) for places in (rows, of))
            for mine, theirs in zip(self.tensors, source.tensors, strict=True):
                mine.index_copy_(0, to, theirs.index_select(0, at))
        else:
            copy_all(pair for row, other in pairs for pair in zip(self._row(row), source._row(other), strict=True))
