"""Registry of commands: functions whose signatures declare arguments and options, parsed by argparse."""

from __future__ import annotations

import argparse
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, NoReturn

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import Range
from fedhead.core.system.errors import BadInput, require, unknown

COMMANDS: dict[str, Command] = {}
GROUPS = ("Start", "Compare", "Look into", "Calibrate", "Deploy", "Papers")  # groups of commands, in this order
HELP = ("-h", "--help")
WIDTH = 80  # characters per line of help texts
_LABELS = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH"}
_NARGS = {(True, False): None, (True, True): "+", (False, False): "?", (False, True): "*"}  # keyed by (required, many)


@dataclass(frozen=True)
class Option:
    """Annotation of a command's option.

    Args:
        help: Sentence for the help.
        flag: Name, such as "--json"; "": derived from the parameter's name.
        label: Placeholder of the value in the help; "": derived from its type.
    """

    help: str = ""
    flag: str = ""
    label: str = ""


class Argument(Option):
    """Annotation of a command's argument; the default label is the parameter's name in capitals."""


class Parser(argparse.ArgumentParser):
    """Parser of one command, which raises its errors as `BadInput`.

    Args:
        command: Words after `fedhead`.
        text: Description for the help, with line breaks.
        **options: Further options of `argparse.ArgumentParser`.
    """

    def __init__(self, command: str, text: str, **options: Any):
        layout = partial(argparse.RawDescriptionHelpFormatter, max_help_position=32, width=WIDTH)
        options |= {"add_help": False, "allow_abbrev": False, "argument_default": argparse.SUPPRESS}
        super().__init__(f"fedhead {command}".strip(), description=text, formatter_class=layout, **options)

    def error(self, message: str) -> NoReturn:
        """Raise a parser's error as `BadInput` instead of exiting the program."""
        if message.endswith("expected one argument"):
            message += ", after = if it begins with a dash"
        for action in self._actions:
            if action.choices is not None and message.endswith(f"required: {action.metavar}"):
                message += f", one of {', '.join(action.choices)}"
        raise BadInput(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def add(self, parameter: inspect.Parameter, hint: Any) -> None:
        """Add the argument or option that a parameter of a function declares by its type hint."""
        kind, *annotations = typing.get_args(hint)
        info = next(item for item in annotations if isinstance(item, Option))
        required = parameter.default is parameter.empty
        if not (self.usage or required or isinstance(info, Argument)):  # [OPTIONS] stands for all optional ones
            self.usage = f"{self.format_usage().partition(': ')[2].strip()} [OPTIONS]"
        if isinstance(kind, types.UnionType):  # an optional type, such as str | None
            kind = typing.get_args(kind)[0]
        many = typing.get_origin(kind) is list
        kind = typing.get_args(kind)[0] if many else kind
        notes = [f"[{note}]" for note in annotations if isinstance(note, Range)]
        if not (required or parameter.default in (None, "") or "[default" in info.help):
            notes.insert(0, f"[default: {parameter.default}]")
        options: dict[str, Any] = {
            "type": partial(_read, kind, Annotated[kind, *annotations]),
            "choices": typing.get_args(kind) or None,
            "help": " ".join([info.help, *notes]),
        }
        flag = info.flag or "--" + parameter.name.replace("_", "-")
        if isinstance(info, Argument):
            label = info.label or parameter.name.upper()
            self.add_argument(parameter.name, metavar=label, nargs=_NARGS[required, many], default=None, **options)
        elif kind is bool:
            self.add_argument(flag, dest=parameter.name, action="store_true", help=info.help)
        else:
            options |= {"metavar": info.label or _LABELS.get(kind), "action": "append" if many else "store"}
            self.add_argument(flag, dest=parameter.name, required=required, **options)

    def read(self, words: list[str]) -> dict[str, Any]:
        """Parse a command line to values by parameter.

        Raises:
            BadInput: If arguments or options are unknown, missing or invalid.
        """
        for word in takewhile("--".__ne__, words):  # check before argparse, which would report missing arguments first
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in (known := self._option_string_actions):
                _refuse_recipe_key(flag, self)
                raise unknown("option", flag, known, f"{self.prog} --help")
        # Python 3.11 drops a leading "--" from intermixed arguments. Words after it are never options.
        parse = self.parse_args if words[0:1] == ["--"] else self.parse_intermixed_args
        return vars(parse(words))


@dataclass(frozen=True)
class Command:
    """Command.

    Args:
        name: Words after `fedhead`.
        group: Heading in the help.
        function: Function that is called with the parsed parameters; its docstring is the help.
    """

    name: str
    group: str
    function: Callable[..., None]

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (self.function.__doc__ or "").partition("\n")[0]

    def parser(self) -> Parser:
        """Return the parser of the arguments and options that the function's signature declares."""
        paragraphs = (inspect.getdoc(self.function) or "").split("\n\n")
        lines = [p if p.startswith("Example") else textwrap.fill(p, WIDTH) for p in paragraphs]
        parser = Parser(self.name, "\n\n".join(lines))
        hints = typing.get_type_hints(self.function, include_extras=True)
        for parameter in inspect.signature(self.function).parameters.values():
            parser.add(parameter, hints[parameter.name])
        parser.add_argument(*HELP, action="help", help="Show this help.")
        return parser


def command(group: str, name: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that registers a function as a command.

    Args:
        group: One of `GROUPS`.
        name: Words after `fedhead`; "": the function's name.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        COMMANDS[name or function.__name__] = Command(name or function.__name__, group, function)
        return function

    return register


def find(words: Sequence[str]) -> tuple[Command, list[str]]:
    """Return the command that a command line begins with, and the other words.

    Raises:
        BadInput: There is no such command.
    """
    for count in (2, 1):
        if entry := COMMANDS.get(" ".join(words[:count])):
            return entry, list(words[count:])
    inner = [name for name in COMMANDS if name.startswith(f"{words[0]} ")]
    name = " ".join(words[:2] if inner else words[:1])
    raise unknown("command", name, inner or COMMANDS, "fedhead --help")


def overview(prefix: str = "") -> str:
    """Return the help of all commands by group, or of those whose names begin with a prefix."""
    intro = "Federated classification on non-IID data: run methods, compare them, and deploy."
    end = "`fedhead COMMAND --help` explains a command; --version prints the version."
    parser = Parser("", intro, usage=f"fedhead {prefix}COMMAND", epilog=end)
    for group in GROUPS:
        section = parser.add_argument_group(group)
        for name, item in sorted(COMMANDS.items()):
            if item.group == group and name.startswith(prefix):
                section.add_argument(name, help=item.summary)
    return parser.format_help()


def _refuse_recipe_key(flag: str, parser: Parser) -> None:
    """Refuse a recipe key as an option of a command that takes a recipe."""
    from fedhead.recipes.recipe import KEYS  # imported here, because commands start without it

    key = flag.removeprefix("--").replace("-", "_")
    if key in KEYS and any(action.dest == "assignments" for action in parser._actions):
        raise BadInput(f"{flag} is no option, but {key} is a recipe key: write {key}=VALUE")


def _read(kind: Any, hint: Any, text: str) -> Any:
    """Convert a word of a command line to a type, and check it."""
    try:
        require(text.strip(), f"{text!r} is empty; give a value, or leave it out")
        value: Any = text
        with suppress(ValueError):
            value = kind(text) if kind in _LABELS else text
        return check("", value, hint)
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix(": ")) from None
