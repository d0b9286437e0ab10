"""Heads in closed form on a GPU: TF32 and bfloat16 cost no accuracy, wherever the features lie."""

from __future__ import annotations

import pytest
from offset_digits import largest_difference

from fedhead.models.precision import set_precision
from gpu import GPU

pytestmark = GPU


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize(("offset", "scale"), [(0, 1.0), (5, 1.0), (100, 1e3), (1000, 1.0), (1000, 1e-3)])
def test_heads_do_not_depend_on_offset_scale_and_precision(offset: float, scale: float, precision: str) -> None:
    try:
        assert largest_difference(offset, scale, precision, "cuda") <= 0.3
    finally:
        set_precision("fp32")
