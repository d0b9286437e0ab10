"""What is undone in a component before a round is run again."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedhead.core.tree.tree import Tree
from fedhead.executors.client.undo import MAX_BYTES, Undo


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, [2]], lambda v: v[1].append(3)),
        ([1], lambda v: v.clear()),
        ({"a": {"b": 1}}, lambda v: v["a"].update(b=2, c=3)),
        ({1, 2}, lambda v: v.update({3})),
        (deque([1, 2], maxlen=2), lambda v: v.append(3)),
        (Counter(a=2, b=-1), lambda v: v.update("ab")),
        (defaultdict(list, a=[1]), lambda v: v["b"].append(1)),
        (OrderedDict(a=1, b=2), lambda v: v.move_to_end("a")),
        (([1],), lambda v: v[0].append(2)),
        (Tree(a=torch.zeros(1), b=Tree()), lambda v: (v.update(a=torch.ones(1)), v["b"].update(c=torch.ones(1)))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_are_put_back_in_place(value: Any, change: Any) -> None:
    part = SimpleNamespace(value=value)
    before = repr(value)
    put_back = Undo(part).put_back
    change(value)
    assert repr(value) != before
    put_back()
    assert repr(value) == before
    assert part.value is value, "others may hold it too"


def test_attributes_that_were_set_added_or_deleted_are_put_back() -> None:
    part = SimpleNamespace(a=1, b=[2])
    first = part.b
    put_back = Undo(part).put_back
    part.a, part.c = 5, 6
    del part.b
    put_back()
    assert vars(part) == {"a": 1, "b": [2]}
    assert part.b is first


def test_tensors_and_arrays_are_put_back_in_place() -> None:
    leaf, plain, array = torch.ones(2, requires_grad=True), torch.ones(2), np.ones(2)
    unchanged = torch.ones(2)
    weight, held = torch.nn.Parameter(torch.ones(2)), torch.ones(2)
    tree = Tree(held=held)
    part = SimpleNamespace(leaf=leaf, inner=[plain, {"a": array}], unchanged=unchanged, weight=weight, tree=tree)
    put_back, version = Undo(part).put_back, unchanged._version
    with torch.no_grad():
        leaf.mul_(3)
    plain.mul_(3)
    array *= 3
    weight.data.mul_(3)
    held.detach().numpy()[:] = 3
    put_back()
    assert [*leaf.tolist(), *plain.tolist(), *array.tolist()] == [1.0] * 6
    assert [*weight.tolist(), *held.tolist()] == [1.0] * 4
    assert part.leaf is leaf
    assert unchanged._version == version, "what has not changed does not count as changed"


def test_what_has_no_room_or_can_t_be_written_is_left() -> None:
    half = [torch.zeros(MAX_BYTES // 8, dtype=torch.float32) for _ in range(3)]
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    with torch.inference_mode():
        inference = torch.zeros(2)
    put_back = Undo(SimpleNamespace(half=half, fixed=fixed, inference=inference)).put_back
    for tensor in half:
        tensor.add_(1)
    put_back()
    assert [float(tensor[0]) for tensor in half] == [0, 0, 1]


def test_a_list_that_holds_itself_and_a_component_without_attributes() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    put_back = Undo(SimpleNamespace(endless=endless)).put_back
    endless.append(2)
    put_back()
    assert len(endless) == 2
    Undo(object()).put_back()


def test_what_can_t_be_copied_or_put_back_stops_no_run() -> None:
    grown, sparse = torch.zeros(2), torch.eye(2).to_sparse()
    put_back = Undo(SimpleNamespace(grown=grown, sparse=sparse)).put_back
    grown.resize_(3)
    put_back()
    assert grown.shape == (3,)
