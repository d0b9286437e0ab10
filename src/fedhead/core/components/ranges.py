"""Ranges of parameters, declared in their annotations.

Example: `mu: Annotated[float, AtLeast(0)] = 0.01`. `parameters.py` validates values from all sources.
Several ranges are combined by "and": `Annotated[float, Above(0), AtMost(1)]`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar


class Range:
    """Set of allowed values; `str` describes it in error messages."""

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
    """Numbers greater than or equal to `bound`.

    Args:
        bound: Smallest allowed number.

    >>> 0 in AtLeast(0), -0.1 in AtLeast(0), str(AtLeast(0))
    (True, False, 'at least 0')
    """

    words, holds = "at least", operator.ge


class Above(_Bound):
    """Numbers greater than `bound`.

    Args:
        bound: Exclusive bound.
    """

    words, holds = "above", operator.gt


class AtMost(_Bound):
    """Numbers less than or equal to `bound`.

    Args:
        bound: Largest allowed number.
    """

    words, holds = "at most", operator.le


class Below(_Bound):
    """Numbers less than `bound`.

    Args:
        bound: Exclusive bound.
    """

    words, holds = "below", operator.lt


@dataclass(frozen=True)
class Matches(Range):
    """Text that fully matches a regular expression.

    Args:
        pattern: Regular expression.
        words: Description of the pattern for error messages.
    """

    pattern: str
    words: str = field(compare=False)

    def __contains__(self, value: Any) -> bool:
        return re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        return self.words
