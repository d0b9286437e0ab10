"""YAML 1.2 reader and writer: 1e-3 is a number, `no` is text, and a repeated key is an error."""

from __future__ import annotations

import io
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import YAMLError

from fedhead.core.system.errors import BadInput, Unreadable

_CALL = re.compile(r"\w\([^()\"']*\[")  # name(parameter=[: in a list, YAML reads the bracket as a nested list
_MOST = 2**17  # limit of values in a text, with aliases expanded
_QUOTES = 'in a list, write such a value in quotes, as in ["mlp(hidden=[8])", mlp]'


class _Constructor(SafeConstructor):
    """Constructor of YAML 1.2's core schema, in which dates are text."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_scalar)


def read_yaml(text: str, source: str) -> Any:
    """Parse YAML text.

    Args:
        text: One document.
        source: Name of the text in errors.

    Raises:
        BadInput: The text is no valid YAML, a key is repeated, or aliases expand to too many values.

    >>> read_yaml("[1e-3, no, null]", "example")
    [0.001, 'no', None]
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    try:
        value = yaml.load(text)
    except (YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}, line {mark.line + 1}" if mark and "\n" in text.strip() else source
        problem = " ".join(str(getattr(error, "problem", error)).split())
        line = text.split("\n")[mark.line] if mark and mark.line <= text.count("\n") else ""
        hint = f": {_QUOTES}" if _CALL.search(line) else ""
        raise Unreadable(f"{where}: not valid YAML ({problem}){hint}") from error
    _check_size(value, source)
    return value


def _check_size(value: Any, source: str) -> None:
    """Check the size of a value with aliases expanded, which may be billions of values or infinite."""
    left, count = [value], 0
    while left:
        count += 1
        if count > _MOST:
            raise BadInput(f"{source}: more than {_MOST:,} values, aliases counted as often as they are used")
        inner = left.pop()
        if isinstance(inner, dict):
            left += [*inner.keys(), *inner.values()]
        elif isinstance(inner, list | tuple | set):
            left += inner


def write_yaml(value: Any) -> str:
    """Serialize a value to YAML that `read_yaml` parses back, with lists in brackets."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # annotated as None
    yaml.width = 4096
    out = io.StringIO()
    yaml.dump(value, out)
    return out.getvalue()
