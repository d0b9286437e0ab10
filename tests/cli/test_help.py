"""Help texts: complete, in groups, and the same as the signatures of the commands."""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
from pathlib import Path
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
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: fedhead {command.name}")
    assert command.summary.endswith(".")
    assert command.summary in " ".join(shown.split())
    for action in command.parser()._actions:
        if action.help == argparse.SUPPRESS:
            assert f"  {action.option_strings[0]} " not in shown
        else:
            assert re.fullmatch(r"[A-Z].*\.( \[.*\])*", str(action.help)), action
            assert re.search(
                rf"^  (-h, )?{action.option_strings[-1] if action.option_strings else action.metavar}\b",
                shown,
                re.MULTILINE,
            )


@EVERY
def test_every_example_of_a_command_is_a_command_line_that_it_takes(command: Command) -> None:
    examples = re.findall(rf"^ +fedhead ({command.name}.*)$", command.function.__doc__ or "", re.MULTILINE)
    assert examples
    for example in examples:
        words = shlex.split(example.partition(" && ")[0])[len(command.name.split()) :]
        inspect.signature(command.function).bind(**command.parser().read(words))


def test_ls_lists_every_kind_of_component() -> None:
    assert {*get_args(ls.Kind)} == {*registries(), "analyses", "recipes", "keys"}


def test_values_are_written_as_in_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in get_args(ls.Kind):
        assert call(["ls", kind]) == 0
        assert not re.search(r"=(None|True|False|\()", capsys.readouterr().out), kind


def test_options_stand_anywhere_and_a_double_dash_ends_them() -> None:
    read = COMMANDS["run"].parser().read
    values = {"recipe": "digits", "assignments": ["lr=1", "rounds=2"], "as_json": True, "threads": 2}
    assert read(["--json", "digits", "lr=1", "--threads", "2", "rounds=2"]) == values
    assert read(["digits", "lr=1", "--threads=2", "--json", "--", "rounds=2"]) == values
    assert read(["--", "-digits", "--json"]) == {"recipe": "-digits", "assignments": ["--json"]}


def test_values_may_begin_with_a_dash() -> None:
    read = COMMANDS["partition"].parser().read
    values = {"dataset": "digits", "partition": "iid"}
    assert read(["digits", "iid", "--seed", "-1"]) == values | {"seed": -1}
    assert read(["digits", "--plot=-a.png", "iid"]) == values | {"plot": Path("-a.png")}


def test_an_option_that_is_given_twice_is_a_list_or_its_last_value() -> None:
    values = (
        COMMANDS["run"]
        .parser()
        .read(["digits", "--logger", "csv", "--logger=wandb", "--device", "cpu", "--device", "cuda"])
    )
    assert values == {"recipe": "digits", "assignments": [], "logger": ["csv", "wandb"], "device": "cuda"}
