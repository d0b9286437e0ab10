"""Checkpoints: written beside the training, and refused where they are of another run."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.treefile import save_tree
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs import checkpoint, run, run_writer
from fedhead.runs.checkpoint import OWNER, Checkpoint, owner_of, to_host
from fedhead.runs.reopen import reopen
from fedhead.runs.run_folder_schema import CHECKPOINT, RESULT
from fedhead.runs.run_writer import stored_clients

STATE = Tree(
    server=Weights({"w": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(3)}, ["count"]),
    clients=Tree({"0": Tree(own=torch.arange(6.0).reshape(2, 3)[:, 1], none=torch.zeros(0, 2))}),
)


@pytest.fixture
def writer(tmp_path: Path) -> Checkpoint:
    writer = Checkpoint(tmp_path / CHECKPOINT, dict, before=lambda: None)
    writer.in_background = True
    return writer


def assert_same(one: Tree, other: Tree) -> None:
    assert list(one.leaves()) == list(other.leaves())
    for name, tensor in one.leaves().items():
        assert torch.equal(tensor, other.leaves()[name])
        assert tensor.dtype == other.leaves()[name].dtype


def test_a_copy_in_the_hosts_memory_has_the_same_numbers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "on_host", lambda t: t.dim() == 1)  # all else stands for a GPU's
    copy = to_host(STATE)
    assert copy["clients"]["0"]["own"] is STATE["clients"]["0"]["own"]
    assert_same(copy, STATE)
    assert isinstance(copy["server"], Weights)
    assert copy["server"].buffers == {"count"}
    STATE["server"]["w"][0, 0] = 0.0  # as it was
    assert copy["server"]["w"].data_ptr() != STATE["server"]["w"].data_ptr()


def test_what_is_written_in_the_background_is_what_was_given(writer: Checkpoint):
    assert writer.save(3, STATE, {"memories": [{}]})
    writer.wait()
    found, facts = writer.load()
    assert facts == {"round": 3, "memories": [{}]}
    assert_same(found, STATE)
    writer.close()


def test_while_one_is_written_others_are_left_out_and_the_last_waits(
    writer: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    go, written = threading.Event(), list[int]()

    def slow(path: Path, state: Tree, facts: dict[str, int]) -> None:
        assert go.wait(10)
        written.append(facts["round"])

    monkeypatch.setattr(checkpoint, "save_tree", slow)
    assert writer.save(1, STATE)
    assert not writer.save(2, STATE)
    assert written == []
    go.set()
    assert writer.save(3, STATE, final=True)
    assert written == [1, 3]  # the last one is on the disk when the call returns
    writer.close()


@pytest.mark.parametrize("final", [False, True])
def test_what_goes_wrong_in_the_background_is_raised_by_the_next_call(
    writer: Checkpoint, monkeypatch: pytest.MonkeyPatch, final: bool
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_tree", full)
    assert writer.save(1, STATE)
    writer.close()
    with pytest.raises(OSError, match="No space left"):
        writer.save(2, STATE, final=final)


def test_states_are_only_collected_where_they_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []

    def noted(clients: Mapping[int, Tree]) -> Tree:
        collected.append(len(clients))
        return stored_clients(clients)

    monkeypatch.setattr(run_writer, "stored_clients", noted)
    monkeypatch.setattr(checkpoint, "SHARE", 1e-9)
    run.execute(load("digits", ["rounds=4", "clients=3", "local_epochs=1"]), tmp_path / "run", Compute())
    assert collected == [3, 3], "the first and the last round"


# -- checkpoints of other runs ---------------------------------------------------------------------------
CPU = Compute(device="cpu", executor="loop")
RECIPE = load("digits", ["rounds=2", "clients=3", "subset=90", "model.hidden=[8]"])


def begin(folder: Path, *words: str) -> Recipe:
    recipe = RECIPE.override(list(words))
    run.execute(recipe, folder, CPU)
    return recipe


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    recipe = begin(tmp_path / "mine", "method=fedprox", "method.mu=0.5", "lr_schedule=cosine")
    begin(tmp_path / "other", "seed=1", "lr=0.3")
    shutil.copyfile(tmp_path / "other" / CHECKPOINT, tmp_path / "mine" / CHECKPOINT)
    differ = {
        "lr": ("0.3", repr(RECIPE.lr)),
        "lr_schedule": ("None", "'cosine'"),
        "method": ("'fedavg'", "'fedprox'"),
        "seed": ("1", "0"),
        "rounds": ("None", "2"),  # which a cosine is laid over
        "method.mu": ("None", "0.5"),
    }
    with pytest.raises(BadInput) as caught:
        reopen(tmp_path / "mine")
    assert f"{CHECKPOINT} is of another run: its " in str(caught.value)
    for key, (was, now) in differ.items():
        assert f"its {key} is {was} (this run's is {now})" in str(caught.value)
    assert str(caught.value).endswith("; put the run's own file back, or delete its folder and run it again")
    (tmp_path / "mine" / RESULT).unlink()
    with pytest.raises(BadInput, match="is of another run"):
        run.execute(recipe, tmp_path / "mine", CPU, resume=True)


def test_many_keys_that_differ_are_counted(tmp_path: Path) -> None:
    begin(tmp_path)
    save_tree(tmp_path / CHECKPOINT, STATE, {"round": 2, OWNER: {f"key{number}": 1 for number in range(9)}})
    with pytest.raises(BadInput, match=r"\), \d+ more; put the run's own file back") as caught:
        reopen(tmp_path)
    assert str(caught.value).count("this run's is") == 8


def test_what_a_run_is_extended_by_is_no_part_of_its_owner() -> None:
    longer = RECIPE.override(["rounds=9", "stages=[ccvr]", "stage.ccvr.samples=5"])
    assert owner_of(RECIPE, {}) == owner_of(longer, {})
    cosine = RECIPE.override(["lr_schedule=cosine"])
    assert owner_of(cosine, {}) != owner_of(cosine.override(["rounds=9"]), {})


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_is_extended_by_rounds_and_stages(tmp_path: Path, finished: bool) -> None:
    begin(tmp_path, "stages=[ccvr]", "stage.ccvr.samples=5", "stage.ccvr.epochs=1")
    if not finished:
        (tmp_path / RESULT).unlink()
    words = ["rounds=3", "stages=[ccvr, ridge]", "stage.ccvr.samples=5", "stage.ccvr.epochs=1", "loggers=[csv]"]
    longer = RECIPE.override(words)
    run.execute(longer, tmp_path, CPU, resume=True)
    assert reopen(tmp_path).round == longer.rounds
