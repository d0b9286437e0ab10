"""Functions shared by the kernels: availability, precision, block sizes and the client axis."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor


@cache
def available() -> bool:
    """Return whether Triton, which compiles the kernels, is installed."""
    try:
        import triton  # noqa: F401  (tests the import)
    except ImportError:
        return False
    return True


@cache
def load(name: str) -> Any:
    """Import a module of this package with kernels, lazily."""
    return importlib.import_module(f"{__package__}.{name}")


def dot_precision() -> str:
    """Return the precision of float32 products: TF32, or three TF32 products for full float32 accuracy."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


def next_power_of_two(count: int, most: int) -> int:
    """Return the next power of two, between 16 and `most`.

    >>> next_power_of_two(3, 64), next_power_of_two(33, 64), next_power_of_two(400, 64)
    (16, 64, 64)
    """
    return max(16, min(most, 1 << (count - 1).bit_length()))


def clients_first(t: Tensor, dim: int | None, clients: int) -> Tensor:
    """Move the client axis to the front, as the rules for `vmap` require.

    Args:
        t: Tensor of the clients.
        dim: Client axis; None: all clients share the tensor.
        clients: Number of clients.
    """
    if dim is None:
        return t.expand(clients, *t.shape)
    return t if dim == 0 else t.movedim(dim, 0)


class Sums(NamedTuple):
    """Launch configuration of kernels that sum over the rows (samples and positions) of each client.

    Args:
        block: Values that a program adds at a time.
        programs: Maximum number of programs, but at least one per client and block of channels.
        warps: Warps per program.
        stages: Pipeline stages.
    """

    block: int
    programs: int
    warps: int
    stages: int

    def slices(self, rows: int, height: int, others: int) -> tuple[int, int]:
        """Return the number of slices of the rows, one per program, and the number of blocks per slice.

        Args:
            rows: Rows of one client.
            height: Rows of a block.
            others: Number of programs per slice: clients × blocks of channels.

        >>> Sums(block=2048, programs=1024, warps=4, stages=1).slices(rows=65536, height=128, others=20)
        (47, 11)
        """
        wanted = max(1, min(self.programs // others, -(-rows // height)))
        turns = -(-rows // (wanted * height))
        return -(-rows // (turns * height)), turns


SUMS = Sums(block=2048, programs=528, warps=4, stages=3)  # fastest on an H200, which has 132 multiprocessors
