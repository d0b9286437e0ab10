"""Triton kernels of `fedhead.executors.kernels.linear`; imported only on a GPU.

A layer's backward pass has two independent products, so one launch computes both.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward(
    x,
    weight,
    bias,
    y,
    B: tl.constexpr,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    BIASED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    EXACTNESS: tl.constexpr,
):
    """Compute y[k, b, o] = sum over i of x[k, b, i] * weight[k, o, i] + bias[k, o], in the dtype of x."""
    k = tl.program_id(1).to(tl.int64)
    x += k * (B * IN)
    weight += k * (OUT * IN)
    y += k * (B * OUT)
    product(x, weight, bias + k * OUT, y, y, 0, B, OUT, IN, IN, 1, 1, IN, BIASED, False, M, N, R, EXACTNESS)


@triton.jit
def backward(
    x,
    weight,
    grad,
    x_grad,
    weight_grad,
    bias_grad,
    B: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    FIRST: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    WM: tl.constexpr,
    WN: tl.constexpr,
    WR: tl.constexpr,
    EXACTNESS: tl.constexpr,
):
    """Compute x_grad[k, b, i] = sum over o of grad[k, b, o] * weight[k, o, i] in the first FIRST programs.

    The others compute weight_grad[k, o, i] = sum over b of grad[k, b, o] * x[k, b, i], and bias_grad, the sum of grad.
    """
    k = tl.program_id(1).to(tl.int64)
    x += k * (B * IN)
    weight += k * (OUT * IN)
    grad += k * (B * OUT)
    if tl.program_id(0) < FIRST:
        x_grad += k * (B * IN)
        product(grad, weight, x, x_grad, x, 0, B, IN, OUT, OUT, 1, IN, 1, False, False, M, N, R, EXACTNESS)
    else:
        weight_grad += k * (OUT * IN)
        bias_grad += k * OUT
        product(
            grad, x, x, weight_grad, bias_grad, FIRST, OUT, IN, B, 1, OUT, IN, 1, False, True, WM, WN, WR, EXACTNESS
        )


@triton.jit
def product(
    a,
    b,
    bias,
    c,
    sums,
    FIRST: tl.constexpr,
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
    """Compute c[m, n] = sum over r of a[m, r] * b[r, n] + bias[n], in the dtype of a, and sums[m] of a.

    A_M and A_R are the strides of a, B_R and B_N those of b. Programs from FIRST on compute one block each.
    """
    ACROSS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    block = tl.program_id(0) - FIRST
    m = block // ACROSS * BLOCK_M + tl.arange(0, BLOCK_M)
    n = block % ACROSS * BLOCK_N + tl.arange(0, BLOCK_N)
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
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    spot = c + m[:, None] * N + n[None, :]
    tl.store(spot, total.to(c.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])
    if SUMMED:
        tl.store(sums + m, tl.sum(alone, 1), mask=m < M)  # all programs of these m store the same values
