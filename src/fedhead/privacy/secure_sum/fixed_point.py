"""Fixed-point numbers modulo 2⁶⁴, whose sums are exact and independent of the order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.system.errors import BadInput

Vector = NDArray[np.uint64]  # numbers modulo 2⁶⁴
LEAST_BITS = 16  # with fewer bits after the point, rounding spoils second moments


@dataclass(frozen=True)
class FixedPoint:
    """Encoding of real numbers, with headroom for the sum over all clients.

    Args:
        clients: Number of clients that may be summed.
        range: Largest absolute number of one client.
    """

    clients: int
    range: float

    @property
    def bits(self) -> int:
        """Bits after the binary point: as many as the sum leaves of 63.

        Raises:
            BadInput: If fewer than `LEAST_BITS` are left.
        """
        bits = 62 - math.ceil(math.log2(self.clients * self.range))
        if bits < LEAST_BITS:
            raise BadInput(f"secure_sum: range {self.range:g} is too large for {self.clients} clients: lower it")
        return bits

    def encode(self, tensors: Mapping[str, Tensor]) -> Vector:
        """Encode all numbers of a client as one vector.

        Args:
            tensors: Named tensors, in the order of the vector.

        Raises:
            BadInput: If a number is not finite or outside the range, or a tensor does not hold real numbers.
        """
        parts = []
        for name, t in tensors.items():
            if not t.is_floating_point():
                raise BadInput(f"secure_sum: {name!r} is {t.dtype}, not a real number: send it as .double()")
            numbers = t.detach().double().cpu().flatten()
            largest = float(numbers.abs().amax()) if len(numbers) else 0.0
            if not largest <= self.range:
                raise BadInput(
                    f"secure_sum: {name!r} holds {largest:g}, more than the range {self.range:g} of one client's "
                    "numbers: set a larger one, secure_sum(range=…)"
                )
            parts.append((numbers * 2.0**self.bits).round().long().numpy().view(np.uint64))
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)

    def decode(self, vector: Vector, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Decode the sum of encoded vectors.

        Args:
            vector: Sum modulo 2⁶⁴.
            shapes: Tensors with the names, order, shapes and dtypes of the encoded ones, possibly on the meta device.
        """
        numbers = torch.from_numpy(vector.view(np.int64)).double() / 2.0**self.bits
        parts = torch.split(numbers, [t.numel() for t in shapes.values()])
        return {name: part.view(t.shape).to(t.dtype) for (name, t), part in zip(shapes.items(), parts, strict=True)}
