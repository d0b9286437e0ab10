"""Trees on disk come back equal, and a broken file is refused by name."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.treefile import load_metadata, load_tree, save_tree

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8, torch.bfloat16, torch.float16]


def same(a: Tree, b: Tree) -> bool:
    """Equal in kind, names and their order, types, shapes and every bit."""
    if type(a) is not type(b) or list(a) != list(b):
        return False
    if isinstance(a, Weights) and isinstance(b, Weights) and a.buffers != b.buffers:
        return False
    for x, y in zip(a.values(), b.values(), strict=True):
        if isinstance(x, Tree) != isinstance(y, Tree):
            return False
        if isinstance(x, Tree):
            if not same(x, y):
                return False
        elif x.dtype != y.dtype or not torch.equal(x, y):
            return False
    return True


names = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=6)
tensors = st.builds(
    lambda shape, dtype, seed: (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)


@st.composite
def weights(draw: st.DrawFn) -> Weights:
    entries = draw(st.dictionaries(names, tensors, max_size=3))
    return Weights(entries, [n for n in entries if draw(st.booleans())])


trees = st.recursive(
    st.dictionaries(names, tensors, max_size=3).map(Tree) | weights(),
    lambda inner: st.dictionaries(names, inner | tensors, max_size=3).map(Tree),
    max_leaves=6,
)


@given(trees)
def test_a_tree_comes_back_equal(tmp_path_factory: pytest.TempPathFactory, tree: Tree) -> None:
    path = tmp_path_factory.mktemp("t") / "tree.safetensors"
    save_tree(path, tree, {"round": 3, "names": ["a", None]})
    back, metadata = load_tree(path)
    assert same(back, tree)
    assert metadata == {"round": 3, "names": ["a", None]}
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no drafts left behind


def test_rows_of_a_stack_and_transposes_can_be_saved(tmp_path: Path) -> None:
    stacked = torch.arange(6.0).reshape(2, 3)
    tree = Tree(a=stacked[0], b=stacked[1], whole=stacked, turned=stacked.T)
    save_tree(tmp_path / "t", tree)
    assert same(load_tree(tmp_path / "t")[0], tree)


def test_names_that_clash_when_joined_are_refused(tmp_path: Path) -> None:
    clash = Tree({"a": Tree(b=torch.ones(1)), "a/b": torch.zeros(1)})
    with pytest.raises(ValueError, match="same full name"):
        save_tree(tmp_path / "t", clash)


def test_every_truncation_and_flipped_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "good"
    save_tree(path, Tree(w=torch.arange(4.0), n=torch.tensor(3)), {"round": 1})
    good = path.read_bytes()
    broken = tmp_path / "broken"
    for cut in range(0, len(good), 7):
        broken.write_bytes(good[:cut])
        with pytest.raises(BadInput, match="broken"):
            load_tree(broken)
    for place in range(len(good) - 24, len(good)):  # the numbers themselves: 4 float32 and an int64
        broken.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(BadInput, match="checksum"):
            load_tree(broken)


def test_every_flipped_bit_of_a_whole_file_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """Also of the names, the types, the shapes and the round."""
    path, broken = tmp_path / "good", tmp_path / "broken"
    tree = Tree(w=torch.arange(4, dtype=torch.float32), n=torch.tensor(3))
    save_tree(path, tree, {"round": 12})
    good = path.read_bytes()
    for place in range(0, len(good), 3):
        broken.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        for read in (load_tree, load_metadata):
            try:
                found = read(broken)
            except BadInput:
                continue
            assert found == {"round": 12} if read is load_metadata else same(found[0], tree) and found[1]["round"] == 12


@pytest.mark.parametrize(("old", "new"), [('"F32"', '"I32"'), ('\\"round\\": 12', '\\"round\\": 11'), ("[4]", "[2,2]")])
def test_another_type_round_or_shape_of_the_same_bytes_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "file"
    save_tree(path, Tree(w=torch.arange(4, dtype=torch.float32)), {"round": 12})
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    text = whole[8 : 8 + size].decode()
    assert old in text
    text = text.replace(old, new)
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + whole[8 + size :])
    with pytest.raises(BadInput, match="checksum"):
        load_tree(path)


def test_foreign_and_missing_files_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "foreign")
    (tmp_path / "text").write_text("hello there, this is no tensor file")
    for name in ("foreign", "text", "missing"):
        with pytest.raises(BadInput, match=name):
            load_tree(tmp_path / name)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with atomic(path) as draft:
            draft.write_text("new, half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link"):
        with pytest.raises(BadInput, match="not a regular file"):
            save_tree(path, Tree(w=torch.ones(2)))
    assert pipe.is_fifo()
    assert len(list(tmp_path.iterdir())) == 2


def test_what_was_read_stays_when_the_file_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_tree(path, Tree(w=torch.arange(5000.0)))
    found = load_tree(path)[0]
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(bytes(size))
    assert torch.equal(found["w"], torch.arange(5000.0))
