"""Components with parameters as recipes write them: `name(0.3, form=equal)`."""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

from fedhead.core.errors import BadInput


class Call(NamedTuple):
    """A name and what stands in the parentheses behind it."""

    name: str
    positional: tuple[Any, ...]
    named: dict[str, Any]


def split_call(text: str) -> tuple[str, str | None]:
    """Return the name and the inside of the parentheses, None if there are none.

    >>> split_call("mine.py:deal(0.3)"), split_call("iid")
    (('mine.py:deal', '0.3'), ('iid', None))
    """
    match = re.fullmatch(r"([^()]*?)\s*(?:\((.*)\))?", text.strip(), re.DOTALL)
    return (match[1], match[2]) if match else (text.strip(), None)


def read_call(text: str, kind: str) -> Call:
    """Read a name with its parameters; bare words are texts.

    >>> read_call("deal(0.3, equal, sizes=[1, 2])", "partition")
    Call(name='deal', positional=(0.3, 'equal'), named={'sizes': [1, 2]})
    """
    name, inside = split_call(text)
    if not inside:
        return Call(name, (), {})
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
        assert isinstance(call, ast.Call)
        positional = tuple(_value(argument) for argument in call.args)
        return Call(name, positional, {str(word.arg): _value(word.value) for word in call.keywords})
    except (SyntaxError, ValueError, AssertionError):
        raise BadInput(f"{kind} {text!r} can't be read: write name(value, parameter=value)") from None


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
