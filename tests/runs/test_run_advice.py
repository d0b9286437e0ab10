"""Advice of errors about a run folder: to delete the folder only where a file of it is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file
from tiny_table import CPU

from fedhead.recipes.recipe import Recipe, load
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT, CONFIG, ENVIRONMENT, PARTITION, RESULT, STAGE_STATES, DamagedRun

AGAIN = "put the run's own file back, or delete its folder and run it again"
RECIPE = load("digits", ["rounds=1", "clients=2", "subset=60", "model.hidden=[8]"])


def made(path: Path) -> Recipe:
    """Run it, so that resuming has to look at everything."""
    execute(RECIPE, path, CPU)
    (path / RESULT).unlink()
    return RECIPE


def cut(name: str) -> Callable[[Path], object]:
    def half(path: Path) -> None:
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[: len(content) // 2])

    return half


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "advice"),
    [
        (write(CONFIG, b""), AGAIN),
        (write(CONFIG, b"\xff"), AGAIN),
        (write(CONFIG, b"lr: [0.1"), AGAIN),
        (cut(CHECKPOINT), AGAIN),
        (cut(PARTITION), "or delete it: the run is read without it, and resuming it writes it again"),
    ],
    ids=["empty", "no text", "cut", "checkpoint", "partition"],
)
def test_a_damaged_file_is_to_be_put_back(tmp_path: Path, damage: Callable[[Path], object], advice: str) -> None:
    recipe = made(tmp_path)
    damage(tmp_path)
    with pytest.raises(DamagedRun) as error:
        execute(recipe, tmp_path, CPU, resume=True)
    assert str(error.value).endswith(advice)
    assert str(error.value).count(advice) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("lear: 0.1", r"unknown key 'lear': did you mean 'lr'\? See fedhead ls keys"),
        ("folders: here", r"folders: 'here' is not a list of folders, such as \[../code\]"),
    ],
)
def test_an_edited_recipe_is_told_what_is_wrong_with_it(tmp_path: Path, line: str, said: str) -> None:
    made(tmp_path)
    with (tmp_path / CONFIG).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(DamagedRun, match=f"{CONFIG}: {said}$") as error:
        RunFolder.open(tmp_path)
    assert "delete" not in str(error.value)


@pytest.mark.parametrize("name", [CHECKPOINT, STAGE_STATES])
def test_a_file_of_another_version_is_no_damage(tmp_path: Path, name: str) -> None:
    made(tmp_path)
    save_file({}, tmp_path / name, metadata={"format": "fedhead-tree-9"})
    folder = RunFolder.open(tmp_path)
    with pytest.raises(
        DamagedRun, match=r"that this version of fedhead wrote: open it with the version that did, or gi"
    ) as error:
        _ = folder.checkpoint.load() if name == CHECKPOINT else folder.stage_states()
    assert "delete" not in str(error.value)


def test_data_that_has_changed_is_no_damage(tmp_path: Path) -> None:
    execute(RECIPE, tmp_path / "one", CPU)
    other = RECIPE.override(["subset=50"])
    execute(other, tmp_path / "other", CPU)
    (tmp_path / "other" / RESULT).unlink()
    (tmp_path / "one" / PARTITION).replace(tmp_path / "other" / PARTITION)
    with pytest.raises(DamagedRun, match=r"differs from today's split.*; put back what has changed, or start a"):
        execute(other, tmp_path / "other", CPU, resume=True)


def test_a_record_that_is_damaged_is_named_once(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / ENVIRONMENT).write_text("{")
    with pytest.raises(DamagedRun) as error:
        RunFolder.open(tmp_path)
    assert str(error.value).count(AGAIN) == 1
