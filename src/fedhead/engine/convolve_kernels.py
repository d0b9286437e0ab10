"""The kernels behind `fedhead.engine.convolve`, in Triton; imported only where there is a GPU."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convolution(
    x,
    weight,
    y,
    pixels,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    M: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    DILATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    EXACTNESS: tl.constexpr,
):
    """y[k, b, m, p, q] = sum over c, i, j of weight[k, m, c, i, j] * x[k, b, c, pS + i - top, qS + j - left]."""
    R: tl.constexpr = C * TALL * WIDE
    k = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    b = n // (P * Q)
    pq = n % (P * Q)
    down = (pq // Q) * STRIDE - TOP
    right = (pq % Q) * STRIDE - LEFT
    image = x + k * (pixels // (P * Q)) * C * H * W + b * (C * H * W)
    filters = weight + k * M * R
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, R, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        c = r // (TALL * WIDE)
        i = (r // WIDE) % TALL
        j = r % WIDE
        h = down[None, :] + i[:, None]
        v = right[None, :] + j[:, None]
        inside = (r[:, None] < R) & (n[None, :] < pixels) & (h >= 0) & (v >= 0)
        if DILATION > 1:
            inside = inside & (h % DILATION == 0) & (v % DILATION == 0)
            h = h // DILATION
            v = v // DILATION
        inside = inside & (h < H) & (v < W)
        patch = tl.load(image[None, :] + (c[:, None] * H + h) * W + v, mask=inside, other=0.0)
        own = tl.load(filters + m[:, None] * R + r[None, :], mask=(m[:, None] < M) & (r[None, :] < R), other=0.0)
        total = tl.dot(own, patch, total, input_precision=EXACTNESS)
    place = y + k * pixels * M + (b[None, :] * M + m[:, None]) * (P * Q) + pq[None, :]
    tl.store(place, total.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < pixels))


@triton.jit
def filter_gradient(
    x,
    grad,
    part,
    pixels,
    SLICES: tl.constexpr,
    TURNS: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    M: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    EXACTNESS: tl.constexpr,
):
    """part[k, s, m, r] = sum over a slice's pixels of grad[k, b, m, p, q] * x[k, b, c, pS + i - top, qS + j - left]."""
    R: tl.constexpr = C * TALL * WIDE
    COLUMNS: tl.constexpr = (R + BLOCK_R - 1) // BLOCK_R
    k = tl.program_id(2).to(tl.int64)
    s = tl.program_id(1)
    r = (tl.program_id(0) % COLUMNS) * BLOCK_R + tl.arange(0, BLOCK_R)
    m = (tl.program_id(0) // COLUMNS) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = r // (TALL * WIDE)
    i = (r // WIDE) % TALL
    j = r % WIDE
    images = pixels // (P * Q)
    image = x + k * images * C * H * W
    slopes = grad + k * pixels * M
    total = tl.zeros((BLOCK_M, BLOCK_R), dtype=tl.float32)
    for turn in range(TURNS):
        n = (turn * SLICES + s) * BLOCK_N + tl.arange(0, BLOCK_N)
        b = n // (P * Q)
        pq = n % (P * Q)
        h = ((pq // Q) * STRIDE - TOP)[:, None] + i[None, :]
        v = ((pq % Q) * STRIDE - LEFT)[:, None] + j[None, :]
        inside = (r[None, :] < R) & (n[:, None] < pixels) & (h >= 0) & (v >= 0) & (h < H) & (v < W)
        patch = tl.load(image + b[:, None] * (C * H * W) + (c[None, :] * H + h) * W + v, mask=inside, other=0.0)
        slope = tl.load(
            slopes + (b[None, :] * M + m[:, None]) * (P * Q) + pq[None, :],
            mask=(m[:, None] < M) & (n[None, :] < pixels),
            other=0.0,
        )
        total = tl.dot(slope, patch, total, input_precision=EXACTNESS)
    place = part + ((k * SLICES + s) * M + m[:, None]) * R + r[None, :]
    tl.store(place, total, mask=(m[:, None] < M) & (r[None, :] < R))
