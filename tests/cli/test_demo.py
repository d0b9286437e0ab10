"""Tests of `fedhead demo`."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedhead as fh
from fedhead.cli import call
from fedhead.cli.run import NEXT


@pytest.mark.slow
def test_the_demo_keeps_its_own_number_of_rounds_where_another_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    assert call(["demo", "--seeds", "1", "--rounds", "1", "--out", str(out), "--quiet"]) == 0
    rounds = {run.record.recipe.method: run.record.recipe.rounds for run in fh.load_all([out])}
    assert rounds["fedetf"] == 1
    assert capsys.readouterr().out.endswith(f"{NEXT}\n")


@pytest.mark.slow
def test_the_commands_that_it_ends_with_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng, y = np.random.default_rng(0), np.arange(90) % 3
    np.savez("mine.npz", x=np.eye(3, 6)[y] + rng.normal(size=(90, 6)), y=y)
    for number, label in enumerate(y):
        folder = tmp_path / "photos" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (40, 48, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    commands = [shlex.split(line)[1:] for line in NEXT.splitlines() if line.startswith("    fedhead ")]
    assert len(commands) == 3
    for words in commands:
        assert call([*words, "rounds=1", "local_epochs=1", "clients=3", "--quiet"]) == 0
        assert "accuracy" in capsys.readouterr().out
