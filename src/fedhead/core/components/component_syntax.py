"""Components with parameters as recipes write them: `name(0.3, form=equal)`.

Models, heads, partitions, uploads, aggregators, samplers and clients' test sets are all written so, and all are read
here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedhead.core.components.parameters import check_all, parameters, required
from fedhead.core.system.errors import BadInput, require_known
from fedhead.core.system.text import printable

_TOKEN = re.compile(r"""\s*('[^']*'|"[^"]*"|[\[\](),=]|[^\s\[\](),='"]+|$)""")
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_CLOSING = {"[": "]", "(": ")"}


class Call(NamedTuple):
    """A name and the arguments in the parentheses after it."""

    text: str  # the whole of it, as it was written
    name: str
    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = MappingProxyType({})

    def arguments(
        self,
        kind: str,
        hints: Mapping[str, Any],
        required: Collection[str] = (),
        named_only: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the values by the names of the parameters that take them, checked.

        Args:
            kind: What is written so, such as "partition".
            hints: The parameters in their order, with the type and ranges of each.
            required: Those that must be given.
            named_only: Further parameters, which are given by name alone.

        Raises:
            BadInput: If there are too many values, or one is unknown, given twice, missing, of another type or out of
                range.
        """
        title = f"{kind} {self.text}"
        if len(self.positional) > len(hints):
            takes = ", ".join(hints) or "no values"
            raise BadInput(f"{title}: {len(self.positional)} values are too many, {self.name} takes {takes}")
        first = dict(zip(hints, self.positional, strict=False))
        if twice := first.keys() & self.named.keys():
            raise BadInput(f"{title}: {min(twice)} is given twice")
        known = {**hints, **(named_only or {})}
        given = check_all({**first, **self.named}, known, f"{kind} {self.name}", f"{title}: ")
        if missing := [word for word in required if word not in given]:
            raise BadInput(f"{title}: {missing[0]} is missing, write {self.name}({', '.join(required)})")
        return given


def read_call(text: str, kind: str) -> Call:
    """Read a name with its parameters.

    Values are numbers, `true`, `false`, `null`, text in quotes or (one word) without, and lists in brackets. A value
    that is such a call itself stays text.

    Args:
        text: What the user wrote.
        kind: What it names, in errors.

    Raises:
        BadInput: It is neither a name nor of the form `name(value, parameter=value)`.

    >>> read_call("deal(0.3, equal, sizes=[1, 2])", "partition")[1:]
    ('deal', (0.3, 'equal'), {'sizes': [1, 2]})
    >>> read_call("mlp(head=mine.py:Cosine(0.2))", "model").named
    {'head': 'mine.py:Cosine(0.2)'}
    """
    text = text.strip()
    name, opened, inside = text.partition("(")
    name = name.strip()
    try:
        if (opened and not name) or ")" in name:
            raise _Unreadable
        if not opened:
            return Call(text, name, (), {})
        reader = _Reader(inside)
        positional, named = reader.arguments()
        if reader.next:
            raise _Unreadable
    except (_Unreadable, RecursionError):
        raise BadInput(
            f"{kind} {printable(repr(text), 200)} can't be read: write name or name(value, parameter=value)"
        ) from None
    except _Twice as twice:
        raise BadInput(f"{kind} {text}: {twice} is given twice") from None
    return Call(text, name, tuple(positional), named)


def policy_arguments(text: str, kind: str, target: type, field: str, policies: Collection[str]) -> dict[str, Any]:
    """Read a policy and its settings, such as `drop(norm=5)`.

    Args:
        text: As recipes write it.
        kind: What the recipe's key is called, such as "outliers".
        target: The dataclass that holds them.
        field: Its field of the policy.
        policies: The policies that there are.

    Returns:
        The arguments of `target`.

    Raises:
        BadInput: If the text can't be read so, or there is no such policy.
    """
    call = read_call(text, kind)
    require_known(f"policy of {kind}", call.name, policies)
    hints = {word: hint for word, hint in parameters(target).items() if word != field}
    needed = [word for word in required(target) if word != field]
    return {field: call.name, **call.arguments(kind, hints, needed)}


def rejoin(items: list[Any]) -> list[Any]:
    """Join what YAML has split at the commas between parentheses: it reads `[f(1, a=2), g]` as three texts.

    >>> rejoin(["f(1", 2, "a=3)", "g"])
    ['f(1, 2, a=3)', 'g']
    """
    found: list[Any] = []
    opened = 0
    for item in items:
        if opened:
            found[-1] = f"{found[-1]}, {item}"
        else:
            found.append(item)
        if isinstance(item, str):
            opened = max(0, opened + item.count("(") - item.count(")"))
    return found


def spaced(text: str) -> str:
    """Return a call with one space after each comma that is not in quotes, so that one call has one spelling.

    >>> spaced("f(1,a=2,  b=',')")
    "f(1, a=2, b=',')"
    """
    return re.sub(r"""('[^']*'|"[^"]*")|\s*,\s*""", lambda found: found[1] or ", ", text)


class _Unreadable(Exception):
    """The text is not of the form that it must have."""


class _Twice(Exception):
    """A parameter is given twice."""


class _Reader:
    """Reads values from left to right; `next` is the token ahead, empty at the end."""

    def __init__(self, text: str):
        self.text = text
        self.next, self.start, self.end = "", 0, 0
        self._advance()

    def _advance(self) -> str:
        """Return the token ahead, and read the one behind it."""
        taken = self.next
        match = _TOKEN.match(self.text, self.end)
        if match is None:  # a quote without its end
            raise _Unreadable
        self.next, self.start, self.end = match[1], match.start(1), match.end(1)
        return taken

    def _expect(self, token: str) -> None:
        if self._advance() != token:
            raise _Unreadable

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Read values and named values up to the closing parenthesis."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        while self.next != ")":
            word = self.next
            value = self.value()
            if self.next == "=":
                self._advance()
                if not word.isidentifier():
                    raise _Unreadable
                if word in named:
                    raise _Twice(word)
                named[word] = self.value()
            elif named:
                raise _Unreadable  # a value without a name behind one with a name
            else:
                positional.append(value)
            if self.next != ")":
                self._expect(",")
        self._advance()
        return positional, named

    def value(self) -> Any:
        """Read one value."""
        start, token = self.start, self._advance()
        if token in _CLOSING:
            return self._list(_CLOSING[token])
        if token[:1] in ("'", '"'):
            return token[1:-1]
        if not token or token in "]),=":
            raise _Unreadable
        if self.next != "(":
            return _scalar(token)
        self._advance()
        end = self.start
        while self.next != ")":  # for its own reader: here it is only skipped
            self.value()
            if self.next not in (",", "=", ")"):
                raise _Unreadable
            if self.next != ")":
                self._advance()
            end = self.start
        self._advance()
        return self.text[start : end + 1]

    def _list(self, closing: str) -> list[Any]:
        items = []
        while self.next != closing:
            items.append(self.value())
            if self.next != closing:
                self._expect(",")
        self._advance()
        return items


def _scalar(word: str) -> Any:
    """Return the number or constant that a word means; other words are text."""
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
