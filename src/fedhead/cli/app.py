"""Registry of commands: functions whose signatures declare arguments and options, and their help."""

from __future__ import annotations

import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import Range
from fedhead.core.system.errors import require, unknown

COMMANDS: dict[str, Command] = {}
GROUPS = ("Start", "Compare", "Look into", "Calibrate", "Deploy", "Papers")  # of commands, in the order of the help
HELP = ("-h", "--help")
WIDTH = 80  # of help texts
_LABELS = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH"}


@dataclass(frozen=True)
class Option:
    """Annotation of a command's option.

    Args:
        flag: Name, such as "--json"; "": by the parameter's name.
        help: Sentence for the help.
        label: Placeholder of the value in the help; "": by its type.
        hidden: Leave it out of the help.
        check: Called with the values, to refuse them.
    """

    flag: str = ""
    help: str = ""
    label: str = ""
    hidden: bool = False
    check: Callable[[Any], object] | None = None


class Argument(Option):
    """Annotation of a command's argument; its label is the parameter's name in capitals unless given."""


class Parameter:
    """Argument or option of a command, read from the signature of its function."""

    def __init__(self, parameter: inspect.Parameter, hint: Any):
        kind, *annotations = typing.get_args(hint)
        self.name, self.default = parameter.name, parameter.default
        self.required = parameter.default is parameter.empty
        self.ranges = [item for item in annotations if isinstance(item, Range)]
        self.info = next(item for item in annotations if isinstance(item, Option))
        if isinstance(kind, types.UnionType):  # with None
            kind = next(inner for inner in typing.get_args(kind) if inner is not types.NoneType)
        self.many = typing.get_origin(kind) is list
        self.kind = typing.get_args(kind)[0] if self.many else kind
        flag = self.info.flag or "--" + self.name.replace("_", "-")
        self.flag = "" if isinstance(self.info, Argument) else flag

    @property
    def label(self) -> str:
        """Name in the help, with a placeholder of an option's value."""
        if not self.flag:
            label = self.info.label or self.name.upper()
            return f"{label}{'...' * self.many}" if self.required else f"[{label}]{'...' * self.many}"
        choices = "|".join(typing.get_args(self.kind)) if typing.get_origin(self.kind) is Literal else ""
        return self.flag if self.kind is bool else f"{self.flag} {self.info.label or choices or _LABELS[self.kind]}"

    @property
    def help(self) -> str:
        """Sentence, with default and range."""
        text = self.info.help
        known = self.required or self.default in (None, "") or self.default is False or text.endswith("]")
        notes = [*([] if known else [f"default: {self.default}"]), *map(str, self.ranges)]
        if text.endswith("]"):
            return "; ".join([text[:-1], *notes]) + "]"
        return f"{text} [{'; '.join(notes)}]" if notes else text

    def read(self, texts: Sequence[str]) -> Any:
        """Convert the texts of a command line to a value, and check it."""
        name = self.flag or self.label
        values = [self._convert(name, text) for text in texts]
        if self.info.check is not None:
            self.info.check(values)
        return values if self.many else values[-1]

    def _convert(self, name: str, text: str) -> Any:
        if self.kind is bool:
            return True
        value: Any = text
        with suppress(ValueError):
            value = self.kind(text) if self.kind in _LABELS else text
        value = check(name, value, self.kind)
        for allowed in self.ranges:
            require(value in allowed, f"{name}: {text} is out of range, it must be {allowed}")
        return value


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

    @cached_property
    def parameters(self) -> list[Parameter]:
        """Arguments and options, in the order of the signature."""
        hints = typing.get_type_hints(self.function, include_extras=True)
        return [Parameter(p, hints[p.name]) for p in inspect.signature(self.function).parameters.values()]

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (self.function.__doc__ or "").partition("\n")[0]

    def call(self, words: Sequence[str]) -> None:
        """Run the command.

        Args:
            words: Arguments and options.

        Raises:
            BadInput: If they are unknown, missing or invalid.
        """
        texts = self._assign(iter(words))
        missing = [p.flag or p.label for p in self.parameters if p.required and p.name not in texts]
        require(not missing, f"{', '.join(missing)} must be given; see fedhead {self.name} --help")
        self.function(**{p.name: p.read(texts[p.name]) for p in self.parameters if p.name in texts})

    def _assign(self, words: Iterator[str]) -> dict[str, list[str]]:
        """Return the texts of each parameter."""
        flags = {p.flag: p for p in self.parameters if p.flag}
        arguments = [p for p in self.parameters if not p.flag]
        texts: dict[str, list[str]] = {}
        page = f"fedhead {self.name} --help"
        for word in words:
            flag, equals, text = word.partition("=")
            if not word.startswith("-"):
                require(arguments, f"unexpected argument {word!r}; see {page}")
                parameter, text = arguments[0], word
                arguments = arguments if parameter.many else arguments[1:]
            elif flag not in flags:
                raise unknown("option", flag, [*HELP, *(p.flag for p in flags.values() if not p.info.hidden)], page)
            else:
                parameter = flags[flag]
                require(not (equals and parameter.kind is bool), f"{flag} takes no value; see {page}")
                if not equals and parameter.kind is not bool:
                    text = next(words, "--")
                    require(not text.startswith("--"), f"{flag} needs a value; see {page}")
            texts.setdefault(parameter.name, []).append(text)
        return texts

    def help(self) -> str:
        """Return the help."""
        arguments = [p for p in self.parameters if not p.flag]
        options = [(p.label, p.help) for p in self.parameters if p.flag and not p.info.hidden]
        usage = " ".join(["Usage: fedhead", self.name, *(p.label for p in arguments), *["[OPTIONS]"] * bool(options)])
        text = inspect.getdoc(self.function) or ""
        paragraphs = [p if p.startswith("Example") else "\n".join(_wrap(p)) for p in text.split("\n\n")]
        sections = {"Arguments": [(p.label, p.help) for p in arguments], "Options": options}
        return "\n\n".join([usage, *paragraphs, *_sections(sections)])


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
        if found := COMMANDS.get(" ".join(words[:count])):
            return found, list(words[count:])
    inner = [name for name in COMMANDS if name.startswith(f"{words[0]} ")]
    name = " ".join(words[:2] if inner else words[:1])
    raise unknown("command", name, inner or COMMANDS, "fedhead --help")


def overview(prefix: str = "") -> str:
    """Return the help of all commands by group, or of those whose names begin with a prefix."""
    shown = [COMMANDS[name] for name in sorted(COMMANDS) if name.startswith(prefix)]
    rows = {group: [(item.name, item.summary) for item in shown if item.group == group] for group in GROUPS}
    intro = "Federated classification on non-IID data: run methods, compare them, and deploy."
    end = "`fedhead COMMAND --help` explains a command; --version prints the version."
    return "\n\n".join([f"Usage: fedhead {prefix}COMMAND", intro, *_sections(rows), *_wrap(end)])


def _sections(sections: Mapping[str, Sequence[tuple[str, str]]]) -> Iterator[str]:
    """Format titled lists of names and texts in two columns; empty ones are left out."""
    for title, rows in sections.items():
        indent = min(max((len(name) for name, _ in rows), default=0), 28) + 4
        lines = [f"{title}:"]
        for name, text in rows:
            wrapped = [" " * indent + line for line in _wrap(text, indent)]
            fits = len(name) < indent - 2
            lines += [f"  {name:<{indent - 2}}" + wrapped.pop(0).lstrip() if fits else f"  {name}", *wrapped]
        if rows:
            yield "\n".join(lines)


def _wrap(text: str, indent: int = 0) -> list[str]:
    return textwrap.wrap(text, WIDTH - indent, break_on_hyphens=False)
