"""Tests of commands that take KEY=VALUE: a key that is given twice is refused, whichever the command is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.recipes.search_space import read_space


@pytest.mark.parametrize(
    "command",
    [
        ["run", "digits"],
        ["validate", "digits"],
        ["sweep", "digits"],
        ["reproduce", "ccvr/table2"],
        ["tune", "digits", "lr=log(1e-3, 1)"],
        ["deploy", "init", "project"],
    ],
)
def test_a_key_that_is_given_twice_is_refused(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call([*command, "rounds=1", "rounds=2"]) == 2
    said = capsys.readouterr().err
    assert said == "error: rounds is given twice (rounds=1 and rounds=2); give one of them\n"
    assert not list(tmp_path.iterdir())


def test_a_search_from_python_refuses_it_too(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"rounds is given twice; .* rounds=choice"):
        read_space(["lr=log(1e-3, 1)", "rounds=1", "rounds=2"])
