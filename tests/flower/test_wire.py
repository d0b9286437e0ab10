"""The wire format: equal after the journey, and nothing is taken that it did not describe."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.policies.reply_check import Refused
from fedhead.flower.wire import wire
from fedhead.testing.inprocess import through_bytes

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def trees(draw: Any, depth: int = 2) -> Tree:
    names = draw(st.lists(st.text("abc.~é ", min_size=1, max_size=5), unique=True, max_size=4))
    entries: dict[str, Any] = {}
    for name in names:
        if depth and draw(st.booleans()):
            entries[name] = draw(trees(depth - 1))
        else:
            shape, dtype = draw(st.lists(st.integers(0, 3), max_size=3)), draw(st.sampled_from(DTYPES))
            entries[name] = (torch.rand(shape) * 100).to(dtype)
    leaves = [name for name, value in entries.items() if not isinstance(value, Tree)]
    if len(leaves) == len(entries) and draw(st.booleans()):
        return Weights(entries, buffers=leaves[:1])
    return Tree(entries)


def same(a: Tree, b: Tree) -> None:
    assert type(a) is type(b)
    assert list(a) == list(b)
    if isinstance(a, Weights) and isinstance(b, Weights):
        assert a.buffers == b.buffers
    for name, value in a.items():
        if isinstance(value, Tree):
            same(value, b[name])
        else:
            assert value.dtype == b[name].dtype
            assert value.shape == b[name].shape
            assert torch.equal(value, b[name])


@given(trees(), trees())
def test_what_arrives_is_what_was_sent(down: Tree, own: Tree) -> None:
    header = {"round": 3, "name": "Zürich", "nothing": None, "lr": 0.1}
    found, arrived = wire.unpack(through_bytes(wire.pack(header, {"down": down, "own": own})))
    assert found == header
    same(down, arrived["down"])
    same(own, arrived["own"])


def content() -> RecordDict:
    return wire.pack({"a": 1}, {"send": Tree(model=Weights({"w": torch.ones(2, 3), "s": torch.zeros(2)}, ["s"]))})


def described(packed: RecordDict, change: Any) -> RecordDict:
    top = dict(packed.config_records["fedhead"])
    trees = json.loads(str(top["trees"]))
    change(trees)
    packed["fedhead"] = ConfigRecord({**top, "trees": json.dumps(trees)})
    return packed


def other_shape(trees: Any) -> None:
    trees["send"]["tensors"][0][2] = [3, 3]


def other_dtype(trees: Any) -> None:
    trees["send"]["tensors"][0][1] = "float64"


def unknown_dtype(trees: Any) -> None:
    trees["send"]["tensors"][0][1] = "object"


def a_tensor_less(trees: Any) -> None:
    trees["send"]["tensors"].pop()


def another_name(trees: Any) -> None:
    trees["send"]["tree"]["entries"][0][0] = "modell"


def the_same_name_twice(trees: Any) -> None:
    inner = trees["send"]["tree"]["entries"][0][1]["entries"]
    inner.append(inner[0])


def another_kind(trees: Any) -> None:
    trees["send"]["tree"]["kind"] = "os.system"


def negative_sides(trees: Any) -> None:
    trees["send"]["tensors"][0][2] = [-2, -3]


def a_tensor_twice(trees: Any) -> None:
    trees["send"]["tensors"][1] = ["model/w", "float32", [2]]


def no_tree(trees: Any) -> None:
    trees["send"] = 7


def a_tree_more(trees: Any) -> None:
    trees["more"] = trees["send"]


def too_deep(trees: Any) -> None:
    inner = {"kind": "Tree", "entries": []}
    for _ in range(20):
        inner = {"kind": "Tree", "entries": [["a", inner]]}
    trees["send"]["tree"] = inner


@pytest.mark.parametrize(
    "change",
    [
        other_shape,
        other_dtype,
        unknown_dtype,
        a_tensor_less,
        another_name,
        the_same_name_twice,
        another_kind,
        negative_sides,
        a_tensor_twice,
        no_tree,
        a_tree_more,
        too_deep,
    ],
)
def test_a_false_description_is_refused(change: Any) -> None:
    with pytest.raises(Refused, match="can't be read"):
        wire.unpack(described(content(), change))


def test_bytes_that_lie_about_themselves_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    top = content().config_records["fedhead"]
    good = top["tensors"]
    assert isinstance(good, bytes)
    assert len(good) == 32
    for bad in (good[:-4], good + b"a", "x" * 32, [good], 32):
        with pytest.raises(Refused):
            wire.unpack(RecordDict({"fedhead": ConfigRecord({**top, "tensors": bad})}))
    monkeypatch.setattr(wire, "_PIECE", 20)
    whole = content()
    assert {name: len(record["tensors"]) for name, record in whole.config_records.items()} == {  # type: ignore[arg-type]
        "fedhead": 20,
        "fedhead/1": 12,
    }
    wire.unpack(whole)
    for record in (
        ConfigRecord({"tensors": good[20:], "more": good}),
        ConfigRecord({"tensors": good[21:]}),
        ConfigRecord(),
        ArrayRecord({"tensors": Array(np.ones(12, np.uint8))}),
    ):
        with pytest.raises(Refused):
            wire.unpack(RecordDict({**whole, "fedhead/1": record}))
    with pytest.raises(Refused, match="2 records are described, 3 are there"):
        wire.unpack(RecordDict({**whole, "fedhead/2": ConfigRecord({"tensors": good})}))
    del whole["fedhead/1"]
    with pytest.raises(Refused, match="2 records are described, 1 are there"):
        wire.unpack(whole)


def test_a_size_beyond_all_records_is_refused_before_anything_is_allocated() -> None:
    def huge(trees: Any) -> None:
        trees["send"]["tensors"][0][2] = [2**47]

    with pytest.raises(Refused, match="records are described, 1 are there"):
        wire.unpack(described(content(), huge))


def test_a_large_tree_travels_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_PIECE", 100)
    tree = Tree(a=torch.rand(70), b=torch.rand(3), empty=torch.zeros(0))  # 292 bytes
    packed = through_bytes(wire.pack({}, {"send": tree, "nothing": Tree()}))
    assert set(packed) == {"fedhead", "fedhead/1", "fedhead/2"}
    same(tree, wire.unpack(packed)[1]["send"])


def test_another_format_and_foreign_messages_are_named() -> None:
    packed = content()
    packed["fedhead"] = ConfigRecord({**packed.config_records["fedhead"], "format": "fedhead-wire-9"})
    with pytest.raises(Refused, match="fedhead-wire-9"):
        wire.unpack(packed)
    with pytest.raises(Refused, match="not from fedhead"):
        wire.unpack(RecordDict())
