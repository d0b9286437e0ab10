"""Functions shared by the kernels: availability, precision, block sizes and the axis of clients."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor


@cache
def available() -> bool:
    """Return whether the compiler of the kernels (Triton) is installed."""
    try:
        import triton  # noqa: F401  (only whether it can be imported)
    except ImportError:
        return False
    return True


@cache
def load(name: str) -> Any:
    """Return a module of this package with kernels, which is imported only where they are launched."""
    return importlib.import_module(f"{__package__}.{name}")


def dot_precision() -> str:
    """Return how float32 factors are multiplied: rounded to TF32, or split in three for full float32 accuracy."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


def next_power_of_two(count: int, most: int) -> int:
    """Return the next power of two, at least 16 and at most `most`.

    >>> next_power_of_two(3, 64), next_power_of_two(33, 64), next_power_of_two(400, 64)
    (16, 64, 64)
    """
    return max(16, min(most, 1 << (count - 1).bit_length()))


def clients_first(t: Tensor, dim: int | None, clients: int) -> Tensor:
    """Return a tensor with the clients along its first axis, as the rules for `vmap` need it.

    Args:
        t: The tensor.
        dim: The axis of the clients; None: all of them share the tensor.
        clients: How many there are.
    """
    if dim is None:
        return t.expand(clients, *t.shape)
    return t if dim == 0 else t.movedim(dim, 0)


class Sums(NamedTuple):
    """How the kernels that sum over the rows of each client (samples and positions) divide the work.

    Args:
        block: Values that a program adds at a time.
        programs: How many programs to launch at most; each client's block of channels has one in any case.
        warps: Warps per program.
        stages: Pipeline stages.
    """

    block: int
    programs: int
    warps: int
    stages: int

    def slices(self, rows: int, height: int, others: int) -> tuple[int, int]:
        """Return into how many slices the rows are divided, one per program, and how many blocks each slice has.

        Args:
            rows: Rows of one client.
            height: Rows of a block.
            others: Clients times blocks of channels: the programs that have the same slice.

        >>> Sums(block=2048, programs=1024, warps=4, stages=1).slices(rows=65536, height=128, others=20)
        (47, 11)
        """
        wanted = max(1, min(self.programs // others, -(-rows // height)))
        turns = -(-rows // (wanted * height))
        return -(-rows // (turns * height)), turns


SUMS = Sums(block=2048, programs=528, warps=4, stages=3)  # the fastest on an H200, which has 132 multiprocessors
