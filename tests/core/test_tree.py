"""Trees: arithmetic by name, parts by dotted prefix, and weights whose running statistics are no parameters."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_structure, tree_unflatten

from fedhead.core.tree.tree import Tree, Weights, stack, total, unstack
from fedhead.core.tree.tree_rows import tree_mean


def weights() -> Weights:
    return Weights({"layer.weight": torch.tensor([3.0, 4.0]), "layer.mean": torch.tensor([10.0])}, ["layer.mean"])


def test_trees_of_other_names_do_not_mix() -> None:
    small = Tree(a=torch.ones(1))
    large = Tree(a=torch.ones(1), b=torch.ones(1))
    for one, other in ((small, large), (large, small)):
        with pytest.raises(KeyError, match="different names: b"):
            one + other
        with pytest.raises(KeyError, match="different names: b"):
            one.dot(other)


def test_a_prefix_ends_at_a_dot() -> None:
    tree = Tree({name: torch.zeros(1) for name in ("head", "head.weight", "header.weight", "body.head.weight")})
    assert list(tree.part("head")) == ["head", "head.weight"]
    assert list(tree.without("head")) == ["header.weight", "body.head.weight"]
    assert list(tree.part("header", "head.weight")) == ["head.weight", "header.weight"]


def test_sizes_and_finiteness_are_those_of_all_tensors_on_all_levels() -> None:
    tree = Tree(a=torch.zeros(2, 3), deep=Tree(n=torch.tensor(1), b=torch.zeros(4, dtype=torch.float64)))
    assert (tree.numel(), tree.nbytes) == (6 + 1 + 4, 24 + 8 + 32)
    assert tree.finite()
    for bad in (torch.nan, torch.inf):
        assert not tree.replace(deep=Tree(b=torch.tensor([0.0, bad]))).finite()


def test_sums_run_over_running_statistics_and_norms_do_not() -> None:
    w = weights()
    assert (w + w)["layer.mean"].item() == 20
    assert w.sq().item() == 25
    assert w.dot(2 * w).item() == 50
    assert list(w.params) == ["layer.weight"]
    assert list(w.stats) == ["layer.mean"]


def test_what_is_a_running_statistic_stays_one() -> None:
    w = weights()
    assert (w * 2).buffers == w.clone().buffers == {"layer.mean"}
    assert Weights({"other.weight": torch.zeros(1)}).replace(w).buffers == {"layer.mean"}
    rest = w.without("layer.mean")
    assert rest.buffers == frozenset()
    # a parameter that takes a lost statistic's name is a parameter
    assert list(rest.replace({"layer.mean": torch.zeros(1)}).params) == ["layer.weight", "layer.mean"]


def test_a_mean_is_weighted_whatever_the_weights_add_up_to() -> None:
    trees = [Tree(a=torch.tensor([0.0, 4.0])), Tree(a=torch.tensor([8.0, 4.0]))]
    assert tree_mean(trees, [30.0, 10.0])["a"].tolist() == [2.0, 4.0]
    with pytest.raises(ValueError, match="positive sum"):
        tree_mean(trees, [0.0, 0.0])


def test_a_stack_comes_apart_into_what_it_was_made_of() -> None:
    trees = [Tree(a=torch.full((2,), float(k)), deep=Tree(b=torch.tensor(k))) for k in range(3)]
    together = stack(trees)
    assert together["a"].shape == (3, 2)
    for one, other in zip(unstack(together, 3), trees, strict=True):
        assert {n: t.tolist() for n, t in one.leaves().items()} == {n: t.tolist() for n, t in other.leaves().items()}


def test_a_total_is_bit_for_bit_what_adding_one_by_one_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    trees = [
        Tree(model=Weights({"w": torch.randn(5, 3, generator=generator), "n": torch.tensor(k)}, ["n"]), b=torch.ones(2))
        for k in range(7)
    ]
    trees[3] = Tree(dict(reversed(trees[3].items())))  # names decide, not their order
    expected = trees[0]
    for tree in trees[1:]:
        expected = expected + tree
    found = total(trees)
    assert all(torch.equal(t, expected.leaves()[name]) for name, t in found.leaves().items())
    assert found["model"].buffers == {"n"}
    assert float(trees[0]["b"].sum()) == 2.0, "the first is not written to"
    with pytest.raises(KeyError, match="different names: c"):
        total([Tree(a=torch.ones(1)), Tree(a=torch.ones(1), c=torch.ones(1))])


def test_an_entry_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(KeyError, match="no entry 'global'; the entries are 'model', 'control'"):
        Tree(model=Tree(), control=Tree())["global"]
    with pytest.raises(KeyError, match=r"the entries are 'a0', .*'a11', …"):
        Weights({f"a{k}": torch.zeros(1) for k in range(13)}, [])["b"]
    with pytest.raises(KeyError, match="the entries are none"):
        Tree()["model"]
    assert Tree().get("model") is None
    assert "model" not in Tree()


def test_weights_with_the_same_buffers_have_the_same_printed_structure() -> None:
    entries = {f"layer.{k}": torch.zeros(1) for k in range(200)}
    one = Weights(entries, list(entries)[:150])
    other = Weights(entries, list(entries)[100:150]).replace(Weights(entries, reversed(list(entries)[:120])))
    assert str(tree_structure(one)) == str(tree_structure(other))
    assert tree_unflatten(list(one.values()), tree_structure(one)).buffers == one.buffers
