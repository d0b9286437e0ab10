"""Parser of components with parameters in recipes: `name(0.3, form=equal)`.

Used for models, heads, partitions, uploads, aggregators, samplers and clients' test sets.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, get_args

from fedhead.core.components.parameters import check_all, parameters, required
from fedhead.core.system.errors import BadInput, require, require_known
from fedhead.core.system.text import printable

T = TypeVar("T")
_WORD = re.compile(r"""'[^']*'|\"[^\"]*\"|[^\s\[\](),='\"]+""")
_STAND_IN = re.compile(r"_(\d+)_")
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}


class Call(NamedTuple):
    """Parsed name with its arguments."""

    text: str  # original text
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
        """Return validated values, keyed by parameter.

        Args:
            kind: Kind of component, such as "partition".
            hints: Parameters in order, with their types and ranges.
            required: Parameters without a default.
            named_only: Keyword-only parameters.

        Raises:
            BadInput: If there are too many values, or one is unknown, duplicate, missing, of the wrong type or out of
                range.
        """
        title = f"{kind} {self.text}"
        count, takes = len(self.positional), ", ".join(hints) or "no values"
        require(count <= len(hints), f"{title}: {count} values are too many, {self.name} takes {takes}")
        first = dict(zip(hints, self.positional, strict=False))
        for parameter in first:
            require(parameter not in self.named, f"{title}: {parameter} is given twice")
        known = {**hints, **(named_only or {})}
        given = check_all({**first, **self.named}, known, f"{kind} {self.name}", f"{title}: ")
        for parameter in required:
            require(parameter in given, f"{title}: {parameter} is missing, write {self.name}({', '.join(required)})")
        return given


def read_call(text: str, kind: str) -> Call:
    """Parse a name with its parameters.

    Values are numbers, `true`, `false`, `null`, quoted text or a single unquoted word, and lists in brackets. Nested
    calls stay text.

    Args:
        text: Text to parse.
        kind: Kind of component, for errors.

    Raises:
        BadInput: If it is neither a name nor of the form `name(value, parameter=value)`.

    >>> read_call("deal(0.3, equal, sizes=[1, 2])", "partition")[1:]
    ('deal', (0.3, 'equal'), {'sizes': [1, 2]})
    >>> read_call("mlp(head=mine.py:Cosine(0.2))", "model").named
    {'head': 'mine.py:Cosine(0.2)'}
    """
    text = text.strip()
    if "(" not in text and ")" not in text:
        return Call(text, text)
    words: list[str] = []  # tokens; the expression has a placeholder for each

    def stand_in(match: re.Match[str]) -> str:
        words.append(match[0])
        return f" _{len(words) - 1}_ "

    try:
        call = ast.parse(_WORD.sub(stand_in, text).strip(), mode="eval").body
        if not isinstance(call, ast.Call):
            raise SyntaxError
        name = _word(call.func, words)
        positional = tuple(_value(node, words) for node in call.args)
        named = [(_parameter(keyword, words), _value(keyword.value, words)) for keyword in call.keywords]
    except (SyntaxError, RecursionError, MemoryError):
        raise BadInput(
            f"{kind} {printable(repr(text), 200)} can't be read: write name or name(value, parameter=value)"
        ) from None
    for parameter, _ in named:
        times = [other for other, _ in named].count(parameter)
        require(times == 1, f"{kind} {text}: {parameter} is given twice")
    return Call(text, name, positional, dict(named))


def read_policy(target: type[T], text: str, kind: str) -> T:
    """Parse a policy with its parameters, such as `drop(norm=5)`.

    Args:
        target: Dataclass to create; its first field is the name of the policy.
        text: Text of the recipe.
        kind: Key of the recipe, such as "outliers".

    Raises:
        BadInput: If the text can't be parsed or the policy is unknown.
    """
    call, hints = read_call(text, kind), dict(parameters(target))
    field = next(iter(hints))
    require_known(f"policy of {kind}", call.name, get_args(hints.pop(field)))
    needed = [name for name in required(target) if name != field]
    return target(**{field: call.name}, **call.arguments(kind, hints, needed))


def rejoin(items: list[Any]) -> list[Any]:
    """Join texts that YAML has split at commas inside parentheses: it reads `[f(1, a=2), g]` as three texts.

    >>> rejoin(["f(1", 2, "a=3)", "g"])
    ['f(1, 2, a=3)', 'g']
    """
    joined: list[Any] = []
    opened = 0
    for item in items:
        if opened:
            joined[-1] = f"{joined[-1]}, {item}"
        else:
            joined.append(item)
        if isinstance(item, str):
            opened = max(0, opened + item.count("(") - item.count(")"))
    return joined


def spaced(text: str) -> str:
    """Normalize a call to one space after each comma outside quotes.

    >>> spaced("f(1,a=2,  b=',')")
    "f(1, a=2, b=',')"
    """
    return re.sub(r"""('[^']*'|"[^"]*")|\s*,\s*""", lambda match: match[1] or ", ", text)


def _word(node: ast.AST | str | None, words: list[str]) -> str:
    """Return the token of a placeholder."""
    name = node.id if isinstance(node, ast.Name) else node
    if not isinstance(name, str):
        raise SyntaxError
    return words[int(name.strip("_"))]


def _parameter(keyword: ast.keyword, words: list[str]) -> str:
    name = _word(keyword.arg, words)
    if not name.isidentifier():
        raise SyntaxError
    return name


def _value(node: ast.AST, words: list[str]) -> Any:
    """Return a value of the expression; a nested call stays text."""
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, words) for item in node.elts]
    if isinstance(node, ast.Call):
        return _STAND_IN.sub(lambda match: words[int(match[1])], ast.unparse(node))
    word = _word(node, words)
    return word[1:-1] if word[0] in "'\"" else _scalar(word)


def _scalar(word: str) -> Any:
    """Convert a word to a number or constant, if it is one."""
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
