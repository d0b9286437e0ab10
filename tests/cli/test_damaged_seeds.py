"""`fedhead run` over several seeds where the folder of one is damaged: it is named, and the others are run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiers import quick

from fedhead.cli import call
from fedhead.runs.run_folder_schema import CHECKPOINT, CONFIG, ENVIRONMENT, METRICS, RESULT

SMALL = ["run", "digits", "rounds=2", "clients=2", "subset=60", "model.hidden=[4]", "local_epochs=1", "--quiet"]
AGAIN = "put the run's own file back, or delete its folder and run it again"
REWRITTEN = "delete it: the run then goes on from its checkpoint and writes it again"


def cut(name: str) -> Callable[[Path], object]:
    """Cut a file of an unfinished run in the middle."""

    def damage(run: Path) -> None:
        (run / RESULT).unlink()
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: len(content) // 2])

    return damage


def change_numbers(run: Path) -> None:
    """Change the last number of an unfinished run's checkpoint; its header is still right."""
    (run / RESULT).unlink()
    content = (run / CHECKPOINT).read_bytes()
    (run / CHECKPOINT).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


DAMAGES = {
    "metrics": (cut(METRICS), METRICS, AGAIN),
    "checkpoint": (cut(CHECKPOINT), CHECKPOINT, AGAIN),
    "numbers": (change_numbers, CHECKPOINT, AGAIN),
    "environment": (cut(ENVIRONMENT), ENVIRONMENT, AGAIN),
    "no config": (lambda run: (run / CONFIG).unlink(), CONFIG, AGAIN),
    "result": (lambda run: (run / RESULT).write_text(""), RESULT, REWRITTEN),
}


@pytest.mark.parametrize("damage", quick(DAMAGES, *list(DAMAGES)[:1]))
def test_the_other_seeds_are_run_and_averaged(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    spoil, file, advice = DAMAGES[damage]
    words = [*SMALL, "--executor", "loop", "seeds=[0, 1, 2]", "--out", str(tmp_path)]
    assert call(words) == 0
    assert "(3 seeds)" in capsys.readouterr().out
    spoil(tmp_path / "seed0")
    (tmp_path / "seed1" / RESULT).unlink()
    shutil.rmtree(tmp_path / "seed2")
    assert call([*words, "--resume", "--json"]) == 1
    shown = capsys.readouterr()
    result = json.loads(shown.out.splitlines()[-1])
    there = [json.loads((tmp_path / f"seed{seed}" / RESULT).read_text())["accuracy"] for seed in (1, 2)]
    assert (result["seed"], result["accuracy"]) == ([1, 2], pytest.approx(np.mean(there)))
    (reason,) = result["failed"].values()
    (error,) = shown.err.splitlines()
    assert error.startswith(f"error: seed 0 is in no mean: {tmp_path / 'seed0'}")
    assert file in reason
    assert reason.endswith(advice)
    assert error.endswith(f"{reason}; fix it, and the same command runs what failed again")
    assert call([*words, "--resume"]) == 1
    assert "(2 of 3 seeds)" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "seed0")
    assert call([*words, "--resume"]) == 0
    assert "(3 seeds)" in capsys.readouterr().out


def test_every_damaged_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "--executor", "loop", "seeds=[0, 1, 2]", "--out", str(tmp_path)]
    assert call(words) == 0
    for count in (2, 3):
        for seed in range(count):
            (tmp_path / f"seed{seed}" / RESULT).write_text("")
        capsys.readouterr()
        assert call([*words, "--resume"]) == 1
        shown = capsys.readouterr()
        error = shown.err.splitlines()[-1]  # after a warning for each run that was finished already
        assert [f"seed {seed} is in no mean: {tmp_path}" in error for seed in range(3)] == [True, True, count == 3]
        assert ("(1 of 3 seeds)" in shown.out) == (count == 2)


@pytest.mark.parametrize("missing", ["seed0", "seed1"])
def test_seeds_of_another_recipe_are_refused_before_any_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    words = [*SMALL, "--executor", "loop", "seeds=[0, 1]", "--out", str(tmp_path)]
    assert call(words) == 0
    shutil.rmtree(tmp_path / missing)
    capsys.readouterr()
    assert call([*words, "lr=0.5", "--resume"]) == 2
    assert "was begun with another recipe: lr was" in capsys.readouterr().err
    assert not (tmp_path / missing).exists(), "with another lr it would be no seed of the same experiment"


def test_a_single_run_says_it_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "--executor", "loop", "--out", str(tmp_path / "run")]
    assert call(words) == 0
    DAMAGES["checkpoint"][0](tmp_path / "run")
    capsys.readouterr()
    assert call([*words, "--resume"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'run' / CHECKPOINT} can't be read")
    assert error.endswith(f"{AGAIN}\n")
