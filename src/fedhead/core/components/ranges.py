"""Ranges of parameters, declared in their annotations.

`mu: Annotated[float, AtLeast(0)] = 0.01` says it once; `parameters.py` checks it wherever a value comes from.
Several ranges in one annotation hold together: `Annotated[float, Above(0), AtMost(1)]`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar


class Range:
    """A set of allowed values; `str` says in words what a value must be."""

    def __contains__(self, value: Any) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class _Bound(Range):
    """Numbers on one side of a bound."""

    bound: float
    words: ClassVar[str]
    holds: ClassVar[Callable[[Any, Any], bool]]

    def __contains__(self, value: Any) -> bool:
        return bool(type(self).holds(value, self.bound))

    def __str__(self) -> str:
        return f"{self.words} {self.bound}"


class AtLeast(_Bound):
    """Numbers from `bound` on.

    Args:
        bound: The smallest allowed number.

    >>> 0 in AtLeast(0), -0.1 in AtLeast(0), str(AtLeast(0))
    (True, False, 'at least 0')
    """

    words, holds = "at least", operator.ge


class Above(_Bound):
    """Numbers greater than `bound`.

    Args:
        bound: Not allowed itself.
    """

    words, holds = "above", operator.gt


class AtMost(_Bound):
    """Numbers up to `bound`.

    Args:
        bound: The largest allowed number.
    """

    words, holds = "at most", operator.le


class Below(_Bound):
    """Numbers smaller than `bound`.

    Args:
        bound: Not allowed itself.
    """

    words, holds = "below", operator.lt


@dataclass(frozen=True)
class Matches(Range):
    """Text that a regular expression describes as a whole.

    Args:
        pattern: The regular expression.
        words: What it asks for, in words, for error messages.
    """

    pattern: str
    words: str = field(compare=False)

    def __contains__(self, value: Any) -> bool:
        return re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        return self.words
