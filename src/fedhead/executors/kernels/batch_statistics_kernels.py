"""Triton kernels of `fedhead.executors.kernels.batch_statistics`; imported only on a GPU.

x is [K, B, P, C]: clients, samples with padding, positions, channels. A block has R rows of B * P and N channels. S is
the number of slices, a power of two.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def partial_sums(
    x,
    samples,
    part,
    B,
    P,
    slices,
    TURNS: tl.constexpr,
    C: tl.constexpr,
    MASKED: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute part[k, s, :, c]: sums of x - a and (x - a)² over slice s of the rows of x [K, B * P, C], no padding."""
    s = tl.program_id(0)
    k = (tl.num_programs(2) - 1 - tl.program_id(2)).to(tl.int64)  # last written data first: still in the L2 cache
    c = tl.program_id(1) * N + tl.arange(0, N)
    x += k * B * P * C
    a = shift(x, c, P, C)
    total = tl.zeros((R, N), tl.float32)
    squares = tl.zeros((R, N), tl.float32)
    for turn in tl.range(TURNS, num_stages=STAGES):
        row = (s * TURNS + turn) * R + tl.arange(0, R)
        inside = row < B * P
        if MASKED:
            inside = inside & (tl.load(samples + k * B + row // P, mask=inside, other=0) != 0)
        here = inside[:, None] & (c < C)[None, :]
        value = tl.load(x + row[:, None] * C + c[None, :], mask=here, other=0.0).to(tl.float32)
        value = tl.where(here, value - a[None, :], 0.0)
        total += value
        squares += value * value
    part += (k * slices + s) * 2 * C
    tl.store(part + c, tl.sum(total, 0), mask=c < C)
    tl.store(part + C + c, tl.sum(squares, 0), mask=c < C)


@triton.jit
def combine(
    x,
    samples,
    part,
    running_mean,
    running_var,
    mean,
    var,
    B,
    P,
    slices,
    C: tl.constexpr,
    MASKED: tl.constexpr,
    RUNNING: tl.constexpr,
    S: tl.constexpr,
    BLOCK: tl.constexpr,
    N: tl.constexpr,
):
    """Compute mean[k, c] and var[k, c] from the parts; use running statistics below two values per channel."""
    k = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * N + tl.arange(0, N)
    if MASKED:
        b = tl.arange(0, BLOCK)
        count = tl.sum((tl.load(samples + k * B + b, mask=b < B, other=0) != 0).to(tl.float32), 0) * P
    else:
        count = B * P + 0.0
    s = tl.arange(0, S)
    there = (s < slices)[:, None] & (c < C)[None, :]
    part += k * slices * 2 * C + s[:, None] * 2 * C + c[None, :]
    n = tl.maximum(count, 1.0)
    moved = tl.sum(tl.load(part, mask=there, other=0.0), 0) / n
    spread = tl.sum(tl.load(part + C, mask=there, other=0.0), 0) / n - moved * moved
    center = shift(x + k * B * P * C, c, P, C) + moved
    spread = tl.maximum(spread, 0.0)
    if RUNNING:
        at = k * C + c
        center = tl.where(count > 1, center, tl.load(running_mean + at, mask=c < C, other=0.0))
        spread = tl.where(count > 1, spread, tl.load(running_var + at, mask=c < C, other=0.0))
    tl.store(mean + k * C + c, center, mask=c < C)
    tl.store(var + k * C + c, spread, mask=c < C)


@triton.jit
def shift(x, c, P, C: tl.constexpr):
    """Return a value per channel near the mean: the middle position of the first sample."""
    return tl.load(x + (P // 2) * C + c, mask=c < C, other=0.0).to(tl.float32)
