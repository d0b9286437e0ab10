"""A checkpoint names the settings of its run: another run's is refused, those of before they did are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.treefile import load_tree, save_tree
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs.checkpoint_owner import SETTINGS, settings
from fedhead.runs.reopen import reopen
from fedhead.runs.run import Compute, execute
from fedhead.runs.run_folder import CHECKPOINT, RESULT

CPU = Compute(device="cpu", executor="loop")
RECIPE = load("digits", ["rounds=2", "clients=3", "subset=90", "model.hidden=[8]"])


def run(folder: Path, *words: str) -> Recipe:
    recipe = RECIPE.override(list(words))
    execute(recipe, folder, CPU)
    return recipe


@pytest.mark.parametrize("word", ["seed=1", "method=fedprox", "lr=0.3", "lr_schedule=cosine"])
def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path, word: str) -> None:
    recipe = run(tmp_path / "mine")
    run(tmp_path / "other", word)
    shutil.copyfile(tmp_path / "other" / CHECKPOINT, tmp_path / "mine" / CHECKPOINT)
    expected = f"{CHECKPOINT} is of another run: its {word.partition('=')[0]} is .* delete its folder and run it again"
    with pytest.raises(BadInput, match=expected):
        reopen(tmp_path / "mine")
    with pytest.raises(BadInput, match=expected):
        execute(recipe.override(["rounds=3"]), tmp_path / "mine", CPU, resume=True)
    (tmp_path / "mine" / RESULT).unlink()
    with pytest.raises(BadInput, match=expected):
        execute(recipe, tmp_path / "mine", CPU, resume=True)


def test_a_checkpoint_that_names_no_settings_is_taken(tmp_path: Path) -> None:
    run(tmp_path)
    state, metadata = load_tree(tmp_path / CHECKPOINT)
    assert metadata.pop(SETTINGS)["clients"] == 3
    save_tree(tmp_path / CHECKPOINT, state, metadata)
    assert reopen(tmp_path).round == 2


def test_a_setting_that_a_later_version_adds_does_not_matter(tmp_path: Path) -> None:
    run(tmp_path)
    state, metadata = load_tree(tmp_path / CHECKPOINT)
    del metadata[SETTINGS]["label_smoothing"]
    save_tree(tmp_path / CHECKPOINT, state, metadata)
    assert reopen(tmp_path).round == 2


def test_what_a_run_is_extended_by_is_no_part_of_it() -> None:
    longer = RECIPE.override(["rounds=9", "stages=[ccvr]", "stage.ccvr.samples=5"])
    assert settings(RECIPE, {}) == settings(longer, {})
    cosine = RECIPE.override(["lr_schedule=cosine"])
    assert settings(cosine, {}) != settings(cosine.override(["rounds=9"]), {})


def test_a_setting_that_a_later_version_removes_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path)
    assert not caplog.messages
    state, metadata = load_tree(tmp_path / CHECKPOINT)
    metadata[SETTINGS]["smoothing_of_labels"] = 0.1
    save_tree(tmp_path / CHECKPOINT, state, metadata)
    assert reopen(tmp_path).round == 2
    assert "trained with settings that this one does not have: smoothing_of_labels=0.1; make sure" in caplog.text


def test_one_setting_is_not_renamed_to_two(tmp_path: Path) -> None:
    run(tmp_path, "label_smoothing=0.1", "weight_decay=0.1")
    state, metadata = load_tree(tmp_path / CHECKPOINT)
    del metadata[SETTINGS]["label_smoothing"], metadata[SETTINGS]["weight_decay"]
    metadata[SETTINGS]["smoothing_of_labels"] = 0.1
    save_tree(tmp_path / CHECKPOINT, state, metadata)
    with pytest.raises(BadInput, match=r"is of another run: its \w+ is not given \(this run's is 0\.1\); put"):
        reopen(tmp_path)


@pytest.mark.parametrize("value", [0.1, 0.2])
def test_a_setting_that_a_later_version_renames_has_the_same_value(tmp_path: Path, value: float) -> None:
    run(tmp_path, "label_smoothing=0.1")
    state, metadata = load_tree(tmp_path / CHECKPOINT)
    del metadata[SETTINGS]["label_smoothing"]
    metadata[SETTINGS]["smoothing_of_labels"] = value
    save_tree(tmp_path / CHECKPOINT, state, metadata)
    if value == 0.1:
        assert reopen(tmp_path).round == 2
    else:
        with pytest.raises(BadInput, match=r"its label_smoothing is not given \(this run's is 0\.1\); put the run's"):
            reopen(tmp_path)


def test_a_setting_that_a_later_version_adds_is_the_default_one(tmp_path: Path) -> None:
    run(tmp_path, "label_smoothing=0.1")
    state, metadata = load_tree(tmp_path / CHECKPOINT)
    del metadata[SETTINGS]["label_smoothing"]
    save_tree(tmp_path / CHECKPOINT, state, metadata)
    with pytest.raises(BadInput, match=r"its label_smoothing is not given \(this run's is 0\.1\); put the run's"):
        reopen(tmp_path)


def test_all_settings_that_differ_are_named(tmp_path: Path) -> None:
    run(tmp_path / "mine", "method=fedprox", "method.mu=0.5", "lr_schedule=cosine")
    run(tmp_path / "other", "seed=1", "lr=0.3")
    shutil.copyfile(tmp_path / "other" / CHECKPOINT, tmp_path / "mine" / CHECKPOINT)
    with pytest.raises(BadInput) as caught:
        reopen(tmp_path / "mine")
    differ = {
        "lr": ("0.3", repr(RECIPE.lr)),
        "lr_schedule": ("None", "'cosine'"),
        "method": ("'fedavg'", "'fedprox'"),
        "seed": ("1", "0"),
        "method.mu": ("not given", "0.5"),
    }
    said = ", ".join(f"its {key} is {was} (this run's is {now})" for key, (was, now) in differ.items())
    assert f" is of another run: {said}; put the run's own file back" in str(caught.value)


def test_many_settings_that_differ_are_counted(tmp_path: Path) -> None:
    run(tmp_path)
    state, metadata = load_tree(tmp_path / CHECKPOINT)
    others = [key for key, value in metadata[SETTINGS].items() if value is None]
    metadata[SETTINGS] |= dict.fromkeys(others, "other")
    save_tree(tmp_path / CHECKPOINT, state, metadata)
    with pytest.raises(BadInput, match=rf"\), {len(others) - 8} more; put the run's own file back") as caught:
        reopen(tmp_path)
    assert str(caught.value).count("this run's is") == 8


@pytest.mark.parametrize(("mine", "other"), [(["method.mu=0.5"], []), ([], ["method.mu=0.5"])])
def test_a_parameter_that_only_one_run_has_set_is_another_runs(
    tmp_path: Path, mine: list[str], other: list[str]
) -> None:
    run(tmp_path / "mine", "method=fedprox", *mine)
    run(tmp_path / "other", "method=fedprox", *other)
    shutil.copyfile(tmp_path / "other" / CHECKPOINT, tmp_path / "mine" / CHECKPOINT)
    with pytest.raises(BadInput, match=r"is of another run: its method\.mu is "):
        reopen(tmp_path / "mine")


@pytest.mark.parametrize(
    "words",
    [
        ["rounds=3"],
        ["stages=[ccvr, ridge]", "stage.ccvr.samples=5", "stage.ccvr.epochs=1"],
        ["rounds=3", "stages=[ccvr, ridge]", "stage.ccvr.samples=5", "stage.ccvr.epochs=1", "loggers=[csv]"],
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_a_run_goes_on_with_what_it_is_extended_by(tmp_path: Path, words: list[str], finished: bool) -> None:
    run(tmp_path, "stages=[ccvr]", "stage.ccvr.samples=5", "stage.ccvr.epochs=1")
    if not finished:
        (tmp_path / RESULT).unlink()
    longer = RECIPE.override(["stages=[ccvr]", "stage.ccvr.samples=5", "stage.ccvr.epochs=1", *words])
    execute(longer, tmp_path, CPU, resume=True)
    assert reopen(tmp_path).round == longer.rounds


def test_an_unfinished_run_goes_on_with_other_loggers(tmp_path: Path) -> None:
    recipe = run(tmp_path, "loggers=[csv]")
    for words in (["loggers=[]"], ["loggers=[csv]"]):
        (tmp_path / RESULT).unlink()
        execute(recipe.override(words), tmp_path, CPU, resume=True)
        assert reopen(tmp_path).round == 2
