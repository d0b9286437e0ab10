"""Triton kernels of `fedhead.executors.kernels.convolve`; imported only on a GPU.

Images are [k, b, h, w, c], channels last, for clients k. A run is the part of an image under one row of a filter: its
taps (t, c) are contiguous in memory. A group of neighboring pixels shares its runs, like one pixel with more channels;
so may several rows of pixels. `expand` lays out the filters for that, and `collect` sums up their gradients. The taps
(run, t, c) of all runs form one axis, which is multiplied in blocks of BLOCK_R.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def expand(
    weight,
    wide,
    STRIDE_K,
    STRIDE_M,
    STRIDE_C,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    RUNS: tl.constexpr,
    SPAN: tl.constexpr,
    I_RUN: tl.constexpr,
    I_ROW: tl.constexpr,
    I_FIRST: tl.constexpr,
    J_TAP: tl.constexpr,
    J_GROUP: tl.constexpr,
    J_FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute wide[k, (row, g, m), run, t, c] = weight[k, m, c, i, j], or zero where i or j lies outside the filter.

    Here i = I_RUN run + I_ROW row + I_FIRST and j = J_TAP t + J_GROUP g + J_FIRST.
    """
    SIZE: tl.constexpr = ROWS * GROUP * M * RUNS * SPAN * C
    k = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = e % C
    t = e // C % SPAN
    run = e // (C * SPAN) % RUNS
    m = e // (C * SPAN * RUNS) % M
    g = e // (C * SPAN * RUNS * M) % GROUP
    row = e // (C * SPAN * RUNS * M * GROUP)
    i = I_RUN * run + I_ROW * row + I_FIRST
    j = J_TAP * t + J_GROUP * g + J_FIRST
    inside = (e < SIZE) & (i >= 0) & (i < TALL) & (j >= 0) & (j < WIDE)
    place = weight + k * STRIDE_K + m * STRIDE_M + c * STRIDE_C + i * WIDE + j
    value = tl.load(place, mask=inside, other=0.0)
    tl.store(wide + k * SIZE + e, value.to(wide.dtype.element_ty), mask=e < SIZE)


@triton.jit
def convolution(
    x,
    wide,
    bias,
    y,
    pixels,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    M: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    ROWS: tl.constexpr,
    RUNS: tl.constexpr,
    SPAN: tl.constexpr,
    DOWN: tl.constexpr,
    RIGHT: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    OVER: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    EXACTNESS: tl.constexpr,
):
    """Compute y[k, b, p, row, q, m] = sum over run, t, c of x[k, b, DOWN p + run - TOP, RIGHT q + t - LEFT, c] * wide.

    The filters are wide[k, (row, m), run, t, c]. OVER: a run may exceed the sides of the image. BIASED: the number of
    filters, and bias[k, m % BIASED] is added; 0: no bias.
    """
    RUN: tl.constexpr = SPAN * C
    TAPS: tl.constexpr = RUNS * RUN
    k = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    down = (n // Q % P) * DOWN - TOP
    right = (n % Q) * (RIGHT * C) - LEFT * C
    x += k * (pixels // (P * Q)) * (H * W * C)
    wide += k * (ROWS * M * TAPS)
    first = (n // (P * Q) * H + down) * (W * C) + right
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for turn in range((TAPS + BLOCK_R - 1) // BLOCK_R):
        r = turn * BLOCK_R + tl.arange(0, BLOCK_R)
        h = down[:, None] + (r // RUN)[None, :]
        inside = (n < pixels)[:, None] & (r < TAPS)[None, :] & (h >= 0) & (h < H)
        if OVER:
            along = right[:, None] + (r % RUN)[None, :]
            inside = inside & (along >= 0) & (along < W * C)
        patch = tl.load(x + first[:, None] + (r // RUN * (W * C) + r % RUN)[None, :], mask=inside, other=0.0)
        place = m[None, :] * TAPS + r[:, None]
        taps = tl.load(wide + place, mask=(r < TAPS)[:, None] & (m < ROWS * M)[None, :], other=0.0)
        total = tl.dot(patch, taps, total, input_precision=EXACTNESS)
    if BIASED > 0:
        total += tl.load(bias + k * BIASED + m % BIASED)[None, :]
    y += k * pixels * (ROWS * M)
    if ROWS == 1:
        spot = y + n[:, None] * M + m[None, :]
    else:
        spot = y + ((n // Q)[:, None] * ROWS + (m // M)[None, :]) * (Q * M) + (n % Q)[:, None] * M + (m % M)[None, :]
    tl.store(spot, total.to(y.dtype.element_ty), mask=(n < pixels)[:, None] & (m < ROWS * M)[None, :])


@triton.jit
def filter_gradient(
    x,
    grad,
    part,
    bias_part,
    pixels,
    SLICES: tl.constexpr,
    TURNS: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    M: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    RUNS: tl.constexpr,
    SPAN: tl.constexpr,
    DOWN: tl.constexpr,
    RIGHT: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    OVER: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    EXACTNESS: tl.constexpr,
):
    """Compute part[k, s, run, t, c, m] = sum over a slice of x[k, b, DOWN p + run - TOP, RIGHT q + t - LEFT, c] * grad.

    A program computes a block of the taps (run, t, c). BIASED: also compute bias_part[k, s, m], the sum of grad.
    """
    RUN: tl.constexpr = SPAN * C
    TAPS: tl.constexpr = RUNS * RUN
    BLOCKS: tl.constexpr = (TAPS + BLOCK_R - 1) // BLOCK_R
    k = (tl.num_programs(2) - 1 - tl.program_id(2)).to(tl.int64)  # last written data first: still in the L2 cache
    s = tl.program_id(1)
    column = tl.program_id(0) % BLOCKS
    r = column * BLOCK_R + tl.arange(0, BLOCK_R)
    m = (tl.program_id(0) // BLOCKS) * BLOCK_M + tl.arange(0, BLOCK_M)
    x += k * (pixels // (P * Q)) * (H * W * C)
    grad += k * pixels * M
    total = tl.zeros((BLOCK_R, BLOCK_M), dtype=tl.float32)
    plain = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for turn in range(TURNS):
        n = (s * TURNS + turn) * BLOCK_N + tl.arange(0, BLOCK_N)
        down = (n // Q % P) * DOWN - TOP
        right = (n % Q) * (RIGHT * C) - LEFT * C
        h = down[:, None] + (r // RUN)[None, :]
        inside = (n < pixels)[:, None] & (r < TAPS)[None, :] & (h >= 0) & (h < H)
        if OVER:
            along = right[:, None] + (r % RUN)[None, :]
            inside = inside & (along >= 0) & (along < W * C)
        first = (n // (P * Q) * H + down) * (W * C) + right
        patch = tl.load(x + first[:, None] + (r // RUN * (W * C) + r % RUN)[None, :], mask=inside, other=0.0)
        slope = tl.load(grad + n[:, None] * M + m[None, :], mask=(n < pixels)[:, None] & (m < M)[None, :], other=0.0)
        total = tl.dot(tl.trans(patch), slope, total, input_precision=EXACTNESS)
        if BIASED:
            plain += slope.to(tl.float32)
    if BIASED:  # noqa: SIM102  (evaluated at compile time, the next one at run time)
        if column == 0:
            tl.store(bias_part + (k * SLICES + s) * M + m, tl.sum(plain, 0), mask=m < M)
    spot = part + (k * SLICES + s) * (TAPS * M) + r[:, None] * M + m[None, :]
    tl.store(spot, total, mask=(r < TAPS)[:, None] & (m < M)[None, :])


@triton.jit
def collect(
    part,
    bias_part,
    grad,
    bias_grad,
    SLICES: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    STRIDE: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Compute grad[k, m, c, i, j] = sum over slices s and pixels g of part[k, s, i, STRIDE g + j, c, (g, m)].

    Also sum up the gradient of the bias, if wanted.
    """
    SIZE: tl.constexpr = M * C * TALL * WIDE
    k = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = e % M
    c = e // M % C
    j = e // (M * C) % WIDE
    i = e // (M * C * WIDE)
    total = tl.zeros((BLOCK_S, BLOCK), dtype=tl.float32)
    bias = tl.zeros((BLOCK_S, BLOCK), dtype=tl.float32)
    for first in range(0, SLICES, BLOCK_S):
        s = first + tl.arange(0, BLOCK_S)
        for g in tl.static_range(GROUP):
            place = ((i * SPAN + STRIDE * g + j) * C + c) * (GROUP * M) + g * M + m
            slices = (k * SLICES + s) * (TALL * SPAN * C * GROUP * M)
            there = (s < SLICES)[:, None] & (e < SIZE)[None, :]
            total += tl.load(part + slices[:, None] + place[None, :], mask=there, other=0.0)
            if BIASED:
                slices = (k * SLICES + s) * (GROUP * M) + g * M
                there = (s < SLICES)[:, None] & (e < M)[None, :]
                bias += tl.load(bias_part + slices[:, None] + e[None, :], mask=there, other=0.0)
    spot = grad + k * SIZE + ((m * C + c) * TALL + i) * WIDE + j
    tl.store(spot, tl.sum(total, 0).to(grad.dtype.element_ty), mask=e < SIZE)
    if BIASED:
        tl.store(bias_grad + k * M + e, tl.sum(bias, 0), mask=e < M)
