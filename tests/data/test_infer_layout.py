"""The layout of an array is found without a copy of it."""

from __future__ import annotations

import numpy as np

from fedhead.data.inputs.arrays import infer_layout


def test_an_array_that_memory_could_not_hold_twice_is_not_copied() -> None:
    images = np.broadcast_to(np.uint8(0), (10**12, 3, 32, 32))  # terabytes, of one byte
    assert infer_layout(images) == "nchw"
    assert infer_layout(np.broadcast_to(np.float32(0), (10**12, 20))) == "features"
