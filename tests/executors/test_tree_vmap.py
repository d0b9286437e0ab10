"""Functions of trees give what `torch.func.vmap` gives, errors included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedhead.algorithm.client import INPUT_DIMS, ClientInputs
from fedhead.algorithm.phase import Reply
from fedhead.core.tree.tree import Tree, Weights
from fedhead.executors.stack.tree_vmap import tree_vmap

COUNT = 3
INPUTS = ClientInputs(
    broadcast=Tree(model=Weights({"w": torch.arange(4.0).reshape(2, 2), "n": torch.tensor(2.0)}, ["n"])),
    per_client=Tree(),
    state=Tree(own=Tree(b=torch.arange(6.0).reshape(COUNT, 2))),
    counts=torch.arange(6.0).reshape(COUNT, 2),
    indices=torch.arange(COUNT)[:, None],
    mask=torch.ones(COUNT, 1),
    steps=torch.tensor([1.0, 2.0, 3.0]),
    lr=torch.tensor(0.1),
    round=torch.tensor(4),
)
MODELS = Weights({"w": torch.rand(COUNT, 2, 2), "n": torch.rand(COUNT)}, ["n"])


def finish(w: Weights, inputs: ClientInputs) -> Reply:
    """Use a bit of everything."""
    sums = w["w"].sum(0) * inputs.lr + inputs.state["own"]["b"] * inputs.steps
    return Reply(Tree(model=w.map(torch.neg), sums=sums), Tree(shared=inputs.broadcast["model"]))


def too_large(w: Weights) -> Tree:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB")


def same(found: Any, expected: Any) -> bool:
    a, b = (torch.utils._pytree.tree_flatten(value) for value in (found, expected))
    return a[1] == b[1] and all(torch.equal(one, other) for one, other in zip(a[0], b[0], strict=True))


def test_trees_and_named_tuples_without_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = vmap(finish, in_dims=(0, INPUT_DIMS))(MODELS, INPUTS)
    nothing = vmap(lambda w: Tree())(MODELS)
    monkeypatch.setattr("fedhead.executors.stack.tree_vmap.vmap", None)
    found = tree_vmap(finish)(MODELS, INPUTS)
    assert same(found, expected)
    assert isinstance(found, Reply)
    assert isinstance(found.keep["shared"], Weights)
    assert found.keep["shared"].buffers == {"n"}
    assert tree_vmap(lambda w: Tree())(MODELS) == nothing == Tree()


@pytest.mark.parametrize("name", ["_add_batch_dim", "_remove_batch_dim"])
def test_vmap_is_called_where_torch_has_not_what_it_is_made_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = vmap(finish, in_dims=(0, INPUT_DIMS))(MODELS, INPUTS)
    monkeypatch.delattr(torch._C._functorch, name)
    assert same(tree_vmap(finish)(MODELS, INPUTS), expected)


def test_other_results_are_those_of_vmap() -> None:
    def listed(w: Weights) -> list[Tensor]:
        return [w["w"] * 2, w["n"]]

    assert same(tree_vmap(listed)(MODELS), vmap(listed)(MODELS))


@pytest.mark.parametrize("function", [too_large, lambda w: torch.empty(1 << 50)])
def test_what_does_not_fit_into_memory_is_not_tried_again(function: Any) -> None:
    calls: list[None] = []

    def counted(w: Weights) -> Any:
        calls.append(None)
        return function(w)

    with pytest.raises(RuntimeError, match="memory"):
        tree_vmap(counted)(MODELS)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda w: Tree(number=1.0), ValueError, "must only return Tensors"),
        (lambda w: w["w"].sum().item(), RuntimeError, "vmap"),
        (lambda w: torch.rand(2) * w["w"], RuntimeError, "random"),
        (lambda w: w["nosuch"], KeyError, "nosuch"),
    ],
)
def test_errors_are_those_of_vmap(function: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        tree_vmap(function)(MODELS)
    assert same(tree_vmap(finish)(MODELS, INPUTS), vmap(finish, (0, INPUT_DIMS))(MODELS, INPUTS))
