"""The kernels behind `fedhead.engine.convolve`, in Triton; imported only where there is a GPU.

Both come in two forms. With many channels (BY_TAP) the sum runs over the filter's taps and, within a tap, over blocks
of channels: whether a pixel lies inside the image is asked once a tap. With few, channels and taps are one axis.
"""

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
    BY_TAP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    EXACTNESS: tl.constexpr,
):
    """y[k, b, m, p, q] = sum over c, i, j of weight[k, m, c, i, j] * x[k, b, c, pS + i - top, qS + j - left].

    BY_TAP takes the filters as [k, i, j, m, c].
    """
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
        r = tl.arange(0, BLOCK_R)
        if BY_TAP:
            tap = start // C
            c = start % C + r
            h = down + tap // WIDE
            v = right + tap % WIDE
            inside = (n < pixels) & (h >= 0) & (v >= 0)
            if DILATION > 1:
                inside = inside & (h % DILATION == 0) & (v % DILATION == 0)
                h = h // DILATION
                v = v // DILATION
            inside = inside & (h < H) & (v < W)
            patch = tl.load((image + h * W + v)[None, :] + c[:, None] * (H * W), mask=inside[None, :], other=0.0)
            own = tl.load(filters + tap * (M * C) + m[:, None] * C + c[None, :], mask=m[:, None] < M, other=0.0)
        else:
            r = start + r
            c = r // (TALL * WIDE)
            i = (r // WIDE) % TALL
            j = r % WIDE
            if TOP == 0 and LEFT == 0 and DILATION == 1:
                place = (image + down * W + right)[None, :] + ((c * H + i) * W + j)[:, None]
                patch = tl.load(place, mask=(r[:, None] < R) & (n[None, :] < pixels), other=0.0)
            else:
                h = down[None, :] + i[:, None]
                v = right[None, :] + j[:, None]
                within = (r[:, None] < R) & (n[None, :] < pixels) & (h >= 0) & (v >= 0)
                if DILATION > 1:
                    within = within & (h % DILATION == 0) & (v % DILATION == 0)
                    h = h // DILATION
                    v = v // DILATION
                within = within & (h < H) & (v < W)
                patch = tl.load(image[None, :] + (c[:, None] * H + h) * W + v, mask=within, other=0.0)
            own = tl.load(filters + m[:, None] * R + r[None, :], mask=(m[:, None] < M) & (r[None, :] < R), other=0.0)
        total = tl.dot(own, patch, total, input_precision=EXACTNESS)
    spot = y + k * pixels * M + (b[None, :] * M + m[:, None]) * (P * Q) + pq[None, :]
    tl.store(spot, total.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < pixels))


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
    BY_TAP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    EXACTNESS: tl.constexpr,
):
    """part[k, s, m, r] = sum over a slice's pixels of grad[k, b, m, p, q] * x[k, b, c, pS + i - top, qS + j - left].

    r runs over [c, i, j], BY_TAP over [i, j, c].
    """
    R: tl.constexpr = C * TALL * WIDE
    COLUMNS: tl.constexpr = (R + BLOCK_R - 1) // BLOCK_R
    k = tl.program_id(2).to(tl.int64)
    s = tl.program_id(1)
    r = (tl.program_id(0) % COLUMNS) * BLOCK_R + tl.arange(0, BLOCK_R)
    m = (tl.program_id(0) // COLUMNS) * BLOCK_M + tl.arange(0, BLOCK_M)
    tap = (tl.program_id(0) % COLUMNS) * BLOCK_R // C
    images = pixels // (P * Q)
    image = x + k * images * C * H * W
    slopes = grad + k * pixels * M
    total = tl.zeros((BLOCK_M, BLOCK_R), dtype=tl.float32)
    for turn in range(TURNS):
        n = (turn * SLICES + s) * BLOCK_N + tl.arange(0, BLOCK_N)
        b = n // (P * Q)
        pq = n % (P * Q)
        down = (pq // Q) * STRIDE - TOP
        right = (pq % Q) * STRIDE - LEFT
        if BY_TAP:
            h = down + tap // WIDE
            v = right + tap % WIDE
            inside = (n < pixels) & (h >= 0) & (v >= 0) & (h < H) & (v < W)
            place = (image + b * (C * H * W) + h * W + v)[:, None] + (r % C)[None, :] * (H * W)
            patch = tl.load(place, mask=inside[:, None], other=0.0)
        else:
            c = r // (TALL * WIDE)
            i = (r // WIDE) % TALL
            j = r % WIDE
            place = (image + b * (C * H * W) + down * W + right)[:, None] + ((c * H + i) * W + j)[None, :]
            within = (r[None, :] < R) & (n[:, None] < pixels)
            if TOP > 0 or LEFT > 0:
                h = down[:, None] + i[None, :]
                v = right[:, None] + j[None, :]
                within = within & (h >= 0) & (v >= 0) & (h < H) & (v < W)
            patch = tl.load(place, mask=within, other=0.0)
        slope = tl.load(
            slopes + (b[None, :] * M + m[:, None]) * (P * Q) + pq[None, :],
            mask=(m[:, None] < M) & (n[None, :] < pixels),
            other=0.0,
        )
        total = tl.dot(slope, patch, total, input_precision=EXACTNESS)
    spot = part + ((k * SLICES + s) * M + m[:, None]) * R + r[None, :]
    tl.store(spot, total, mask=(m[:, None] < M) & (r[None, :] < R))
