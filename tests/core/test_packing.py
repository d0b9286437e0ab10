"""Tensors packed by dtype come back as they were."""

from __future__ import annotations

import torch

from fedhead.core.tree.packing import pack, unpack


def test_tensors_of_several_dtypes_and_shapes_come_back() -> None:
    tensors = [
        torch.arange(6.0).reshape(2, 3),
        torch.tensor(7),
        torch.zeros(0, 5),
        torch.tensor(2.0),
        torch.tensor([[True], [False]]),
        torch.arange(8.0).reshape(2, 4).t(),
        torch.tensor([3, 4]),
    ]
    buffers = pack(tensors)
    assert {kind: t.shape for kind, t in buffers.items()} == {
        torch.float32: (6 + 0 + 1 + 8,),
        torch.int64: (3,),
        torch.bool: (2,),
    }
    found = list(unpack({kind: t.clone() for kind, t in buffers.items()}, tensors))
    assert len(found) == len(tensors)
    for t, expected in zip(found, tensors, strict=True):
        torch.testing.assert_close(t, expected, rtol=0, atol=0)


def test_nothing_packs_to_nothing() -> None:
    assert pack([]) == {}
    assert list(unpack({}, [])) == []
