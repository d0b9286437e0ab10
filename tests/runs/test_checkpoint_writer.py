"""Tests of writing checkpoints beside the training."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.treefile import load_tree
from fedhead.recipes.recipe import load
from fedhead.runs import checkpoint_writer, run
from fedhead.runs.checkpoint_writer import CheckpointWriter, to_host
from fedhead.runs.run_writer import stored_clients

STATE = Tree(
    server=Weights({"w": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(3)}, ["count"]),
    clients=Tree({"0": Tree(own=torch.arange(6.0).reshape(2, 3)[:, 1], none=torch.zeros(0, 2))}),
)


@pytest.fixture
def writer(tmp_path: Path) -> CheckpointWriter:
    writer = CheckpointWriter(tmp_path / "checkpoint.safetensors", before=lambda: None)
    writer.in_background = True
    return writer


def assert_same(one: Tree, other: Tree) -> None:
    assert list(one.leaves()) == list(other.leaves())
    for name, tensor in one.leaves().items():
        assert torch.equal(tensor, other.leaves()[name])
        assert tensor.dtype == other.leaves()[name].dtype


def test_a_copy_in_the_hosts_memory_has_the_same_numbers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint_writer, "on_host", lambda t: t.dim() == 1)  # all else stands for a GPU's
    copy = to_host(STATE)
    assert copy["clients"]["0"]["own"] is STATE["clients"]["0"]["own"]
    assert_same(copy, STATE)
    assert isinstance(copy["server"], Weights)
    assert copy["server"].buffers == {"count"}
    STATE["server"]["w"][0, 0] = 0.0  # as it was
    assert copy["server"]["w"].data_ptr() != STATE["server"]["w"].data_ptr()


def test_what_is_written_in_the_background_is_what_was_given(writer: CheckpointWriter):
    assert writer.save(STATE, {"round": 3})
    writer.wait()
    found, facts = load_tree(writer.path)
    assert facts == {"round": 3}
    assert_same(found, STATE)
    writer.close()


def test_while_one_is_written_others_are_left_out_and_the_last_waits(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
):
    go, written = threading.Event(), list[int]()

    def slow(path: Path, state: Tree, facts: dict[str, int]) -> None:
        assert go.wait(10)
        written.append(facts["round"])

    monkeypatch.setattr(checkpoint_writer, "save_tree", slow)
    assert writer.save(STATE, {"round": 1})
    assert not writer.save(STATE, {"round": 2})
    assert written == []
    go.set()
    assert writer.save(STATE, {"round": 3}, final=True)
    assert written == [1, 3]  # the last one is on the disk when the call returns
    writer.close()


@pytest.mark.parametrize("final", [False, True])
def test_what_goes_wrong_in_the_background_is_raised_by_the_next_call(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch, final: bool
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_writer, "save_tree", full)
    assert writer.save(STATE, {"round": 1})
    writer.close()
    with pytest.raises(OSError, match="No space left"):
        writer.save(STATE, {"round": 2}, final=final)


def test_states_are_only_collected_where_they_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []

    def noted(clients: Mapping[int, Tree]) -> Tree:
        collected.append(len(clients))
        return stored_clients(clients)

    monkeypatch.setattr(run, "stored_clients", noted)
    monkeypatch.setattr(checkpoint_writer, "SHARE", 1e-9)
    run.execute(load("digits", ["rounds=4", "clients=3", "local_epochs=1"]), tmp_path / "run", run.Compute())
    assert collected == [3, 3], "the first and the last round"
