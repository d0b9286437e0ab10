"""Run folders: nothing in one is lost or overwritten, and a run goes on from any moment."""

import errno
import io
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_runs import FINAL, STAGE

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import save_tree
from fedhead.data.federation.federation import Federation
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs import checkpoint
from fedhead.runs.folder_lock import LOCK
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import (
    CHECKPOINT,
    CONFIG,
    ENVIRONMENT,
    METRICS,
    PARTITION,
    RESULT,
    SCHEMA,
    STAGE_STATES,
)
from fedhead.runs.run_writer import RunWriter

RECIPE = Recipe(dataset="digits", rounds=5)
COSTS = {"bytes_up": 1, "bytes_down": 1, "seconds": 0.1}


def state(number: float) -> Tree:
    return Tree(server=Tree(model=torch.full((2,), number)), clients=Tree({"3": Tree()}))


def photograph(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def with_rounds(path: Path, rounds: int, checkpoint: int) -> RunFolder:
    folder = RunFolder.create(path, RECIPE)
    with folder.locked():
        for number in range(1, rounds + 1):
            folder.record({"round": number, "accuracy": 10.0 * number + 1 / 3, **COSTS})
            if number == checkpoint:
                assert folder.checkpoint.save(number, state(number), final=True)
    return folder


def test_a_folder_keeps_what_it_is_given(tmp_path: Path) -> None:
    folder = with_rounds(tmp_path / "deep" / "run", 3, 2)
    again = RunFolder.open(folder.path)
    again.check_continued_by(RECIPE)
    assert again.recipe == RECIPE
    assert [row["accuracy"] for row in again.metrics()] == [10 + 1 / 3, 20 + 1 / 3, 30 + 1 / 3]
    again.save_environment({"executor": "loop"})
    again.save_environment({"device": "cpu"})
    assert again.environment() == {"executor": "loop", "device": "cpu"}
    assert (again.finished, again.result()) == (False, None)
    again.finish({**FINAL, "accuracy": float("nan"), "stages": {"ccvr": {**STAGE, "accuracy": 1.5}}})
    assert again.finished
    assert again.result() == {**FINAL, "accuracy": None, "stages": {"ccvr": {**STAGE, "accuracy": 1.5}}}


def test_a_round_is_on_record_at_once_and_a_folder_can_be_held_again(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", RECIPE)
    for number in (1, 2):
        with folder.locked():
            folder.record({"round": number, "clients": [float("inf"), 50.0], **COSTS})
            rows = RunFolder.open(folder.path).metrics()  # as another process sees them
            assert rows == [{"round": n, "clients": [None, 50.0], **COSTS} for n in range(1, number + 1)]


def test_rewinding_cuts_the_metrics_back_to_the_checkpoint(tmp_path: Path) -> None:
    folder = with_rounds(tmp_path / "run", 4, 2)
    with (folder.path / METRICS).open("a") as file:
        file.write('{"round": 5, "accu')  # killed in the middle of a line
    found = RunFolder.open(folder.path).rewind()
    assert found is not None
    number, tree, rows = found
    assert (number, [row["round"] for row in rows]) == (2, [1, 2])
    assert torch.equal(tree["server"]["model"], torch.full((2,), 2.0))
    assert tree["clients"] == {"3": {}}
    assert [json.loads(line)["round"] for line in (folder.path / METRICS).read_text().splitlines()] == [1, 2]


def test_rewinding_without_a_checkpoint_starts_over(tmp_path: Path) -> None:
    folder = with_rounds(tmp_path / "run", 2, checkpoint=9)
    assert RunFolder.open(folder.path).rewind() is None
    assert folder.metrics() == []


def test_checkpoints_take_a_small_share_of_the_time_but_the_last_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoint, "save_tree", lambda *_: now.__setitem__(0, now[0] + 1))  # a second each
    folder = RunFolder.create(tmp_path / "run", RECIPE)
    saved = []
    for number in range(1, 46):  # rounds of a second
        now[0] += 1
        if folder.checkpoint.save(number, state(number)):
            saved.append(number)
    assert saved == [1, 21, 41]  # 20 seconds lie between the end of one and the next: a twentieth of the time
    assert folder.checkpoint.save(46, state(46), final=True)


def test_what_a_checkpoint_counts_on_is_on_the_disk_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, order = RunFolder.create(tmp_path / "run", RECIPE), list[str]()
    monkeypatch.setattr(os, "fsync", lambda _: order.append("metrics"))
    monkeypatch.setattr(checkpoint, "save_tree", lambda *_: order.append("checkpoint"))
    with folder.locked():
        folder.record({"round": 1})
        folder.checkpoint.save(1, state(1), final=True)
    assert order == ["metrics", "checkpoint"]


def test_a_checkpoint_of_no_round_is_refused(tmp_path: Path) -> None:
    folder = with_rounds(tmp_path / "run", 2, 2)
    save_tree(folder.path / CHECKPOINT, state(1), {})
    with pytest.raises(BadInput, match="names no round"):
        folder.rewind()


def test_metrics_that_were_cut_are_not_taken_for_whole(tmp_path: Path) -> None:
    folder = with_rounds(tmp_path / "run", 3, 3)
    lines = (folder.path / METRICS).read_text().splitlines(keepends=True)
    (folder.path / METRICS).write_text("".join(lines[:1]))
    before = photograph(folder.path)
    with pytest.raises(BadInput, match="ends before round 3"):
        RunFolder.open(folder.path).rewind()
    assert photograph(folder.path) == before


@pytest.mark.parametrize("numbers", [[1, 1, 2, 2], [1, 3], [2, 3], [1, None]])
def test_metrics_of_other_rounds_than_their_lines_are_refused(tmp_path: Path, numbers: list[object]) -> None:
    folder = with_rounds(tmp_path / "run", 2, 2)
    (folder.path / METRICS).write_text("".join(json.dumps({"round": n, **COSTS}) + "\n" for n in numbers))
    with pytest.raises(BadInput, match=r"metrics\.jsonl, line \d is of round"):
        RunFolder.open(folder.path).metrics()
    with pytest.raises(BadInput, match="it must be of round"):
        RunFolder.open(folder.path).rewind()


@pytest.mark.parametrize("file", [METRICS, ENVIRONMENT, RESULT])
@pytest.mark.parametrize("text", ["[]\n", "[" * 100_000 + "\n", '"done"\n', "{\n"], ids=["list", "deep", "text", "cut"])
def test_what_is_no_json_object_is_refused_in_one_line(tmp_path: Path, file: str, text: str) -> None:
    path = with_rounds(tmp_path / "run", 2, 2).path
    (path / file).write_text(text)
    with pytest.raises(BadInput, match=file) as refused:
        read_everything(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def read_everything(path: Path) -> None:
    folder = RunFolder.open(path)
    folder.metrics(), folder.result()


@pytest.mark.parametrize(("text", "schema"), [('{"schema": 1}', 1), ("{}", None)])
def test_a_folder_of_another_schema_is_refused(tmp_path: Path, text: str, schema: int | None) -> None:
    path = with_rounds(tmp_path / "run", 2, 2).path
    (path / ENVIRONMENT).write_text(text)
    expected = f"written by another version of fedhead \\(schema {schema}, this one reads {SCHEMA}\\): run it again"
    with pytest.raises(BadInput, match=expected):
        RunFolder.open(path)


@pytest.mark.parametrize("broken", [CONFIG, METRICS, CHECKPOINT])
def test_a_broken_file_is_refused_by_name_and_left_alone(tmp_path: Path, broken: str) -> None:
    folder = with_rounds(tmp_path / "run", 3, 3)
    (folder.path / broken).write_bytes(b"\xff\xfe not what it was\n")
    before = photograph(folder.path)
    with pytest.raises(BadInput, match=broken):
        RunFolder.open(folder.path).rewind()
    assert photograph(folder.path) == before


def test_taken_folders_are_refused_and_left_alone(tmp_path: Path) -> None:
    unfinished = with_rounds(tmp_path / "unfinished", 2, 1).path
    finished = with_rounds(tmp_path / "finished", 2, 1)
    finished.finish({"accuracy": 1.0})
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    before = photograph(tmp_path)
    for name, said in [
        (unfinished, "continue it with --resume"),
        (finished.path, "holds a finished run"),
        (tmp_path / "foreign", r"holds no run \(it has thesis.tex\)"),
        (tmp_path / "file", "is a file"),
    ]:
        with pytest.raises(BadInput, match=said):
            RunFolder.create(name, RECIPE)
    with pytest.raises(BadInput, match="is no run folder"):
        RunFolder.open(tmp_path / "foreign")
    assert photograph(tmp_path) == before


def test_another_recipe_is_refused_with_the_key_that_differs(tmp_path: Path) -> None:
    path = with_rounds(tmp_path / "run", 2, 1).path
    with pytest.raises(BadInput, match=r"lr was 0\.01 and is now 0\.5"):
        RunFolder.open(path).check_continued_by(Recipe(dataset="digits", rounds=5, lr=0.5))
    with pytest.raises(BadInput, match=r"method\.mu was None and is now 1"):
        RunFolder.open(path).check_continued_by(Recipe(dataset="digits", rounds=5, method_parameters={"mu": 1}))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc, which not even root can write to")
def test_unwritable_folders_are_refused() -> None:
    with pytest.raises(BadInput, match=r"can't be written to: .*; select another folder with --out"):
        RunFolder.create("/proc/self/run", RECIPE)


def test_a_place_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"file/run"):
        RunFolder.create(tmp_path / "file" / "run", RECIPE)


def test_two_processes_can_not_hold_one_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", RECIPE)
    second = RunFolder.open(folder.path)
    with folder.locked(), pytest.raises(BadInput, match="is in use"), second.locked():
        pass
    with second.locked():
        pass  # let go of


def test_of_processes_that_create_one_folder_at_once_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are between looking at the folder and writing its first file; locks hold between threads as well."""
    look, ready, outcomes = RunFolder.refuse_taken, threading.Barrier(4, timeout=20), list[str]()
    waited = threading.local()

    def look_and_wait(path: str | Path) -> None:
        look(path)
        if not hasattr(waited, "once"):
            waited.once = ready.wait()

    def create_and_hold() -> None:
        try:
            with RunFolder.create(tmp_path / "run", RECIPE).locked():
                outcomes.append("won")
                ready.wait()
        except BadInput as error:
            outcomes.append(str(error))
            ready.wait()

    monkeypatch.setattr(RunFolder, "refuse_taken", staticmethod(look_and_wait))
    threads = [threading.Thread(target=create_and_hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("won") == 1
    assert sum("in use" in said or "holds an unfinished run" in said for said in outcomes) == 3


def test_a_run_that_another_process_went_on_with_is_not_mixed_with_it(tmp_path: Path) -> None:
    recipe = load("digits", ["rounds=2", "clients=2", "subset=40", "model.hidden=[4]", "local_epochs=1"])
    late = RunWriter(recipe, tmp_path / "run", resume=True)  # has looked at the folder, which is not there yet
    with RunWriter(recipe, tmp_path / "run").writing({"executor": "loop"}):
        pass  # meanwhile another process was there, and was killed
    said = "began a run in it meanwhile; give the same command again when that has ended, or select another folder"
    with pytest.raises(BadInput, match=said), late.writing({"executor": "stack"}):
        pass
    late = RunWriter(recipe, tmp_path / "run", resume=True)
    RunFolder.open(tmp_path / "run").finish({"accuracy": 1.0})
    before = photograph(tmp_path)
    with pytest.raises(BadInput, match="another process went on"), late.writing({"executor": "stack"}):
        pass
    assert photograph(tmp_path) == before


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002])
def test_files_have_the_permissions_that_the_umask_says(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = with_rounds(tmp_path / "run", 2, 2)
        folder.save_split(Federation.from_arrays(np.zeros((12, 2)), np.arange(12) % 3, clients=3))
        folder.save_environment({"executor": "loop"})
        folder.save_stages({"ccvr": Tree(model=torch.ones(2))})
        folder.finish({"accuracy": 1.0})
    finally:
        os.umask(before)
    modes = {p.name: oct(p.stat().st_mode & 0o777) for p in folder.path.iterdir() if p.name != LOCK}
    assert modes.keys() == {CONFIG, METRICS, CHECKPOINT, PARTITION, ENVIRONMENT, STAGE_STATES, RESULT}
    assert set(modes.values()) == {oct(0o666 & ~umask)}


def test_a_draft_that_a_kill_left_does_not_take_the_folder(tmp_path: Path) -> None:
    (tmp_path / f".{CONFIG}.abc").write_text("half")
    (tmp_path / ".gitkeep").touch()
    with pytest.raises(BadInput, match="gitkeep"):  # but anything else does
        RunFolder.create(tmp_path, RECIPE)
    (tmp_path / ".gitkeep").unlink()
    with RunFolder.create(tmp_path, RECIPE).locked():
        assert {p.name for p in tmp_path.iterdir()} == {CONFIG, ENVIRONMENT, LOCK}  # and it is swept away


@pytest.mark.parametrize("left", [".metrics.jsonl.x1", ".tmpA1b2C3", ".stages.safetensors.y.safetensors"])
def test_drafts_that_a_kill_left_are_removed_and_nothing_else(tmp_path: Path, left: str) -> None:
    folder = RunFolder.create(tmp_path / "run", Recipe(dataset="digits"))
    for name in (left, ".keep"):
        (folder.path / name).touch()
    with folder.locked():
        assert {p.name for p in folder.path.iterdir()} == {".keep", LOCK, CONFIG, ENVIRONMENT}


def test_the_split_is_kept_and_compared(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", RECIPE)
    data = np.zeros((12, 2)), np.arange(12) % 3
    fed = Federation.from_arrays(*data, clients=3, client_test=0.5)
    assert folder.split() is None
    folder.save_split(fed)
    folder.save_split(fed)
    stored = folder.split()
    assert stored is not None
    assert np.array_equal(stored.counts, fed.counts())
    before = (folder.path / PARTITION).read_bytes()
    with pytest.raises(BadInput, match="the data has changed"):
        folder.save_split(Federation.from_arrays(*data, clients=3, client_test=0.5, seed=1))
    assert fed.client_test is not None
    for changed in (
        replace(fed, client_test=[fed.client_test[0][:1], *fed.client_test[1:]]),
        replace(fed, client_test=None),
        replace(fed, test=fed.train, client_test_from="test"),
        replace(fed, indices=fed.indices[:2], client_test=fed.client_test[:2]),
        replace(fed, train=fed.train._replace(x=fed.train.x + 1)),  # the same split of other samples
    ):
        with pytest.raises(BadInput):
            folder.save_split(changed)
    assert (folder.path / PARTITION).read_bytes() == before
    assert {p.name for p in folder.path.iterdir()} == {CONFIG, ENVIRONMENT, LOCK, PARTITION}
    (folder.path / PARTITION).write_bytes(before[: len(before) // 2])
    with pytest.raises(BadInput, match=PARTITION):
        folder.split()


def test_a_split_is_stored_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that can't be opened a second time is not begun anew with what is left to write."""
    folder, opened = RunFolder.create(tmp_path / "run", RECIPE), io.open

    def open_once(file: object, mode: str = "r", *rest: object, **more: object) -> object:
        if PARTITION in str(file) and mode == "r+b":
            raise OSError(errno.EIO, "Input/output error", str(file))
        return opened(file, mode, *rest, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(io, "open", open_once)
    fed = Federation.from_arrays(np.zeros((12, 2)), np.arange(12) % 3, clients=3)
    folder.save_split(fed)
    folder.save_split(fed)
    stored = folder.split()
    assert stored is not None
    assert np.array_equal(stored.counts, fed.counts())
