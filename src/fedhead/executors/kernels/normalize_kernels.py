"""Triton kernels of `fedhead.executors.kernels.normalize`; imported only on a GPU.

x is [K, B, P, C]: clients, samples with padding, positions, channels. A block has R rows of B * P and N channels. S is
the number of slices, a power of two. weight, bias, mean and var are [K, C].
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normalize(
    x,
    skip,
    weight,
    bias,
    mean,
    var,
    y,
    rows,
    eps,
    C: tl.constexpr,
    SKIP: tl.constexpr,
    RECTIFY: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
):
    """Compute y = (x - mean) / sqrt(var + eps) * weight + bias; SKIP adds skip, RECTIFY applies max(0, .)."""
    k = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * N + tl.arange(0, N)
    row = tl.program_id(0) * R + tl.arange(0, R)
    at = k * rows * C + row[:, None] * C + c[None, :]
    here = (row < rows)[:, None] & (c < C)[None, :]
    center, scale, gain, shift = per_channel(weight, bias, mean, var, eps, k, c, C)
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    out = ((value - center) * (scale * gain) + shift).to(y.dtype.element_ty)
    if SKIP:
        out = (out.to(tl.float32) + tl.load(skip + at, mask=here, other=0.0).to(tl.float32)).to(y.dtype.element_ty)
    if RECTIFY:
        out = tl.where(out <= 0, 0.0, out)  # NaN stays NaN
    tl.store(y + at, out, mask=here)


@triton.jit
def gradient_sums(
    x,
    grad,
    weight,
    bias,
    mean,
    var,
    part,
    rows,
    slices,
    eps,
    TURNS: tl.constexpr,
    C: tl.constexpr,
    RECTIFY: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute part[k, s, :, c]: sums of the gradient, and of gradient times normalized x, over slice s of the rows."""
    s = tl.program_id(0)
    k = (tl.num_programs(2) - 1 - tl.program_id(2)).to(tl.int64)  # last written data first: still in the L2 cache
    c = tl.program_id(1) * N + tl.arange(0, N)
    center, scale, gain, shift = per_channel(weight, bias, mean, var, eps, k, c, C)
    total = tl.zeros((R, N), tl.float32)
    product = tl.zeros((R, N), tl.float32)
    for turn in tl.range(TURNS, num_stages=STAGES):
        row = (s * TURNS + turn) * R + tl.arange(0, R)
        at = k * rows * C + row[:, None] * C + c[None, :]
        here = (row < rows)[:, None] & (c < C)[None, :]
        moved = tl.load(x + at, mask=here, other=0.0).to(tl.float32) - center
        gradient = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        if RECTIFY:
            gradient = tl.where((moved * (scale * gain) + shift).to(grad.dtype.element_ty) <= 0, 0.0, gradient)
        total += gradient
        product += tl.where(here, gradient * (moved * scale), 0.0)
    part += (k * slices + s) * 2 * C
    tl.store(part + c, tl.sum(total, 0), mask=c < C)
    tl.store(part + C + c, tl.sum(product, 0), mask=c < C)


@triton.jit
def gradient_totals(
    part,
    samples,
    weight_gradient,
    bias_gradient,
    share,
    B,
    P,
    slices,
    min_count,
    C: tl.constexpr,
    MASKED: tl.constexpr,
    S: tl.constexpr,
    BLOCK: tl.constexpr,
    N: tl.constexpr,
):
    """Compute the gradients of weight and bias, and share[k, :, c]: these gradients over the number of values.

    The gradient of x needs the shares. They are 0 for a batch with fewer values than `min_count`, which was not
    normalized by its own statistics.
    """
    k = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * N + tl.arange(0, N)
    s = tl.arange(0, S)
    there = (s < slices)[:, None] & (c < C)[None, :]
    part += k * slices * 2 * C + s[:, None] * 2 * C + c[None, :]
    total = tl.sum(tl.load(part, mask=there, other=0.0), 0)
    product = tl.sum(tl.load(part + C, mask=there, other=0.0), 0)
    tl.store(bias_gradient + k * C + c, total, mask=c < C)
    tl.store(weight_gradient + k * C + c, product, mask=c < C)
    if MASKED:
        b = tl.arange(0, BLOCK)
        count = tl.sum((tl.load(samples + k * B + b, mask=b < B, other=0) != 0).to(tl.float32), 0) * P
        inverse = (count >= min_count).to(tl.float32) / tl.maximum(count, 1.0)
    else:
        inverse = 1.0 / (B * P)
    share += k * 2 * C
    tl.store(share + c, total * inverse, mask=c < C)
    tl.store(share + C + c, product * inverse, mask=c < C)


@triton.jit
def input_gradient(
    x,
    grad,
    weight,
    bias,
    mean,
    var,
    samples,
    share,
    dx,
    B,
    P,
    eps,
    C: tl.constexpr,
    MASKED: tl.constexpr,
    RECTIFY: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
):
    """Compute the gradient of x; the statistics depend only on samples, not on padding."""
    k = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * N + tl.arange(0, N)
    row = tl.program_id(0) * R + tl.arange(0, R)
    at = k * B * P * C + row[:, None] * C + c[None, :]
    here = (row < B * P)[:, None] & (c < C)[None, :]
    center, scale, gain, shift = per_channel(weight, bias, mean, var, eps, k, c, C)
    share += k * 2 * C
    total = tl.load(share + c, mask=c < C, other=0.0)[None, :]
    product = tl.load(share + C + c, mask=c < C, other=0.0)[None, :]
    moved = tl.load(x + at, mask=here, other=0.0).to(tl.float32) - center
    gradient = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
    if RECTIFY:
        gradient = tl.where((moved * (scale * gain) + shift).to(grad.dtype.element_ty) <= 0, 0.0, gradient)
    through = total + moved * scale * product
    if MASKED:
        sample = tl.load(samples + k * B + row // P, mask=row < B * P, other=0) != 0
        through = tl.where(sample[:, None], through, 0.0)
    tl.store(dx + at, ((gradient - through) * (scale * gain)).to(dx.dtype.element_ty), mask=here)


@triton.jit
def per_channel(weight, bias, mean, var, eps, k, c, C: tl.constexpr):
    """Return mean, 1 / sqrt(var + eps), weight and bias of some channels, as rows."""
    at = k * C + c
    center = tl.load(mean + at, mask=c < C, other=0.0)
    scale = tl.math.rsqrt(tl.load(var + at, mask=c < C, other=1.0) + eps)
    gain = tl.load(weight + at, mask=c < C, other=0.0).to(tl.float32)
    shift = tl.load(bias + at, mask=c < C, other=0.0).to(tl.float32)
    return center[None, :], scale[None, :], gain[None, :], shift[None, :]
