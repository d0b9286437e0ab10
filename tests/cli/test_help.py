"""Help texts: complete, in groups, and the same as the signatures of the commands."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from fedhead.cli import call, ls
from fedhead.cli.app import COMMANDS, GROUPS, Command
from fedhead.recipes.components import registries

EVERY = pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)


def test_every_command_is_listed_once_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--help"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^(\w[\w ]*):$", out, re.MULTILINE) == list(GROUPS)
    assert sorted(re.findall(r"^  (\w+(?: \w+)?)  ", out, re.MULTILINE)) == sorted(COMMANDS)
    assert re.search(r"^Start:\n  demo .*\n(   .*\n)*  new .*\n(   .*\n)*  run ", out, re.MULTILINE)


@EVERY
def test_a_command_and_all_its_arguments_and_options_have_help(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([*command.name.split(), "-h"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"Usage: fedhead {command.name}")
    assert command.summary.endswith(".")
    assert command.summary in shown
    for parameter in command.parameters:
        if not parameter.info.hidden:
            assert re.fullmatch(r"[A-Z].*\.( \[.*\])?", parameter.help), f"{parameter.label}: {parameter.help}"
            assert f" {parameter.label} {parameter.help}" in shown


@EVERY
def test_every_example_of_a_command_is_a_command_line_that_it_takes(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shlex

    examples = re.findall(rf"^ +fedhead ({command.name}.*)$", command.function.__doc__ or "", re.MULTILINE)
    assert examples
    for example in examples:
        words = shlex.split(example.partition(" && ")[0])[len(command.name.split()) :]
        texts = command._assign(iter(words))
        values = [p.read(texts[p.name]) for p in command.parameters if p.name in texts]
        assert len(values) == len(texts)


def test_ls_lists_every_kind_of_component() -> None:
    assert {*get_args(ls.Kind)} == {*registries(), "analyses", "recipes", "keys"}


def test_values_are_written_as_in_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in get_args(ls.Kind):
        assert call(["ls", kind]) == 0
        assert not re.search(r"=(None|True|False|\()", capsys.readouterr().out), kind
