"""The kernel behind `fedhead.stacked.linear`, in Triton; imported only where there is a GPU."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
    a,
    b,
    bias,
    c,
    sums,
    M: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    A_M: tl.constexpr,
    A_R: tl.constexpr,
    B_R: tl.constexpr,
    B_N: tl.constexpr,
    BIASED: tl.constexpr,
    SUMMED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    EXACTNESS: tl.constexpr,
):
    """c[k, m, n] = sum over r of a[k, m, r] * b[k, r, n] + bias[k, n], in the type of a; and sums[k, m] of a alone.

    A_M and A_R are the strides of a, B_R and B_N those of b; each client's matrices lie one behind the other.
    """
    k = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    a += k * (M * R)
    b += k * (R * N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    alone = tl.zeros((BLOCK_M, BLOCK_R), dtype=tl.float32)
    for first in range(0, R, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        left = tl.load(a + m[:, None] * A_M + r[None, :] * A_R, mask=(m < M)[:, None] & (r < R)[None, :], other=0.0)
        right = tl.load(b + r[:, None] * B_R + n[None, :] * B_N, mask=(r < R)[:, None] & (n < N)[None, :], other=0.0)
        total = tl.dot(left, right.to(left.dtype), total, input_precision=EXACTNESS)
        if SUMMED:
            alone += left.to(tl.float32)
    if BIASED:
        total += tl.load(bias + k * N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    spot = c + k * (M * N) + m[:, None] * N + n[None, :]
    tl.store(spot, total.to(c.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])
    if SUMMED:  # noqa: SIM102  (this is asked when it is compiled, the next when it runs)
        if tl.program_id(1) == 0:
            tl.store(sums + k * M + m, tl.sum(alone, 1), mask=m < M)
