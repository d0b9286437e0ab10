"""Copies, clones and zeros of many tensors at once."""

from __future__ import annotations

import pytest
import torch

from fedhead.core.tree import foreach
from fedhead.core.tree.tree import Tree


def mixed() -> list[torch.Tensor]:
    images = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    return [torch.randn(3), images, torch.tensor(7), torch.randn(2, 2).double(), torch.randn(0, 3)]


def test_tensors_of_each_kind_are_copied_with_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = torch._foreach_copy_

    def counted(to: list[torch.Tensor], source: list[torch.Tensor]) -> None:
        assert len({t.dtype for t in to}) == 1
        calls.append(len(to))
        real(to, source)

    monkeypatch.setattr(torch, "_foreach_copy_", counted)
    source = mixed()
    to = [torch.zeros_like(t) for t in source]
    to[1] = to[1].contiguous()  # of another layout
    same = torch.ones(2)
    foreach.copy_all([*zip(to, source, strict=True), (same, same)])
    assert all(torch.equal(a, b) for a, b in zip(to, source, strict=True))
    assert sorted(calls) == [1, 1, 1, 2], "float32 as it lies, float32 in another layout, int64, float64"


@pytest.mark.parametrize("fused", [False, True])
def test_clones_and_zeros_keep_layout_and_share_nothing(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreach, "_are_fused", lambda tensors: fused)
    tensors = mixed()
    for made, expected in (
        (foreach.clone_all(tensors), tensors),
        (foreach.zeros_like_all(tensors), [torch.zeros_like(t) for t in tensors]),
    ):
        for found, value, source in zip(made, expected, tensors, strict=True):
            assert torch.equal(found, value)
            assert (found.dtype, found.stride()) == (source.dtype, source.stride())
            assert found.data_ptr() != source.data_ptr() or not found.numel()


@pytest.mark.parametrize("fused", [False, True])
def test_trees_keep_their_names_and_levels(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreach, "_are_fused", lambda tensors: fused)
    tree = Tree(a=torch.ones(2), model=Tree(w=torch.full((2, 2), 3.0), n=torch.tensor(4)), z=torch.zeros(1))
    copy, zeros = tree.clone(), tree.zeros()
    assert list(copy.leaves()) == list(zeros.leaves()) == list(tree.leaves())
    for path, value in tree.leaves().items():
        assert torch.equal(copy.leaves()[path], value)
        assert torch.equal(zeros.leaves()[path], torch.zeros_like(value))
    assert Tree().clone() == Tree() == Tree().zeros()


def test_what_autograd_or_vmap_watches_is_cloned_one_by_one() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert Tree(w=leaf).clone()["w"].grad_fn is not None
    assert torch.func.vmap(lambda t: Tree(w=t).clone()["w"] + 1)(torch.zeros(3, 2)).sum() == 6
