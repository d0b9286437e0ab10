"""Rows of several tensors with a client axis, copied with few kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from fedhead.core.transfer import to_device

FEW = 8  # rows; up to so many are copied by one kernel per dtype, more of them by two kernels per tensor


class StackedRows:
    """Tensors with a leading client axis, of whose rows some are overwritten at a time.

    Args:
        tensors: The tensors, of equal length.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.tensors = list(tensors)

    @cached_property
    def _each(self) -> list[tuple[Tensor, ...]]:
        """The tensors of each client."""
        return list(zip(*(t.unbind() for t in self.tensors), strict=True))

    def copy(self, rows: Sequence[int], source: StackedRows, of: Sequence[int]) -> None:
        """Overwrite some rows of all tensors.

        Args:
            rows: Rows to overwrite, each once.
            source: Tensors of the same shapes and types but for their length.
            of: Rows of `source` to copy, one for each of `rows`.
        """
        if not self.tensors or not rows:
            return
        every = list(range(len(self.tensors[0])))
        if list(rows) == list(of) == every and len(source.tensors[0]) == len(every):
            self._copy(zip(self.tensors, source.tensors, strict=True))
            return
        if len(rows) > FEW:
            to, at = (to_device(places, self.tensors[0].device) for places in (rows, of))
            for mine, theirs in zip(self.tensors, source.tensors, strict=True):
                mine.index_copy_(0, to, theirs.index_select(0, at))
            return
        self._copy(
            pair
            for row, other in zip(rows, of, strict=True)
            for pair in zip(self._each[row], source._each[other], strict=True)
        )

    def _copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        kinds: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}  # only tensors of one dtype are copied by one kernel
        for mine, theirs in pairs:
            kinds.setdefault(mine.dtype, []).append((mine, theirs))
        for alike in kinds.values():
            torch._foreach_copy_([mine for mine, _ in alike], [theirs for _, theirs in alike])
