"""Class sums of a batch of features, which add up to `Statistics` over batches."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedhead.calibration.symmetric import pack, triangle
from fedhead.core.tree.tree import Tree

Kind = Literal["full", "diagonal", "pooled", "means"]  # kind of second moments


def batch_sums(z: Tensor, y: Tensor, weight: Tensor, classes: int, kind: Kind) -> Tree:
    """Compute the sums of a batch in float64; can be vectorized over clients.

    Args:
        z: Features, [B, d].
        y: Labels, [B].
        weight: 1 for a sample, 0 for an ignored one, such as padding; [B].
        classes: Number of classes C.
        kind: Kind of second moments.

    Returns:
        `count` [C], `sum` [C, d] and, unless the kind is `means`, `outer`.
    """
    if kind in ("full", "diagonal"):
        return Tree(zip(("count", "sum", "outer"), class_sums(z, y, weight, classes, kind == "diagonal"), strict=True))
    member = ((y[:, None] == torch.arange(classes, device=y.device)) & (weight > 0)[:, None]).double()
    count, z = member.sum(0), torch.where((weight > 0)[:, None], z.double(), 0.0)
    samples = count.sum()
    mean = z.sum(0) / samples.clamp_min(1)
    # sums of deviations and one addition at the end: rounding errors of large features don't grow with the batch
    deviation = torch.where((weight > 0)[:, None], z - mean, 0.0)
    sums = Tree(count=count, sum=member.mT @ deviation + torch.outer(count, mean))
    if kind == "means":
        return sums
    cross = torch.outer(deviation.sum(0), mean)
    return sums.replace(outer=pack(deviation.mT @ deviation + cross + cross.mT + samples * torch.outer(mean, mean)))


# `torch.library.custom_op` imports torch's compiler in the first call, which takes seconds
_SCHEMA = "class_sums(Tensor z, Tensor y, Tensor weight, int classes, bool diagonal) -> (Tensor, Tensor, Tensor)"
_library = torch.library.Library("fedhead", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's
_library.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]  # torch's


def class_sums(z: Tensor, y: Tensor, weight: Tensor, classes: int, diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Compute counts [C], sums [C, d] and sums of outer products in float64, in the layout of `Statistics`.

    The batch is sorted by class first, so that samples are only multiplied within their class. That requires the values
    of the labels, which are not available under vmap, hence a custom operator. Weights are 0 or 1.
    """
    sums: tuple[Tensor, Tensor, Tensor] = torch.ops.fedhead.class_sums(z, y, weight, classes, diagonal)
    return sums


def _compute(z: Tensor, y: Tensor, weight: Tensor, classes: int, diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:
    d = z.shape[1]
    label = torch.where(weight > 0, y, classes)  # padding sorts last and is ignored
    order = torch.argsort(label, stable=True)
    sizes = torch.bincount(label, minlength=classes + 1)[:classes]
    sorted_z = z[order].double()
    total = z.new_zeros(classes, d, dtype=torch.float64)
    outer = z.new_zeros(classes, d if diagonal else d * (d + 1) // 2, dtype=torch.float64)
    if not diagonal:
        rows, columns = triangle(d, z.device)
        upper = rows * d + columns  # flat indices: twice as fast as indexing by rows and columns
    begin = 0
    for c, size in enumerate(sizes.tolist()):
        if size:
            members = sorted_z[begin : begin + size]
            total[c] = members.sum(0)
            if diagonal:
                outer[c] = members.square().sum(0)
            else:
                torch.index_select((members.T @ members).flatten(), 0, upper, out=outer[c])
            begin += size
    return sizes.double(), total, outer


def _empty(z: Tensor, y: Tensor, weight: Tensor, classes: int, diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:
    d = z.shape[1]
    shapes = ((classes,), (classes, d), (classes, d if diagonal else d * (d + 1) // 2))
    count, total, outer = (z.new_empty(shape, dtype=torch.float64) for shape in shapes)
    return count, total, outer


def _stacked(info, in_dims, z, y, weight, classes, diagonal):  # type: ignore[no-untyped-def]  # torch's signature
    def batched(t: Tensor, dim: int | None) -> Tensor:
        return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)

    z, y, weight = (batched(t, dim) for t, dim in zip((z, y, weight), in_dims, strict=False))
    # offset the labels of each client, so that one call computes the sums of all clients
    labels = y + classes * torch.arange(info.batch_size, device=y.device).unsqueeze(1)
    count = info.batch_size * classes
    sums = torch.ops.fedhead.class_sums(z.flatten(0, 1), labels.flatten(), weight.flatten(), count, diagonal)
    return tuple(t.unflatten(0, (info.batch_size, classes)) for t in sums), (0, 0, 0)


_library.impl("class_sums", _compute, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]  # torch's
torch.library.register_fake("fedhead::class_sums", _empty, lib=_library)
torch.library.register_vmap("fedhead::class_sums", _stacked, lib=_library)
