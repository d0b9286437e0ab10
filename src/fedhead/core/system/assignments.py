"""KEY=VALUE words, as commands and deployments take them."""

from __future__ import annotations

from collections.abc import Sequence

from fedhead.core.system.errors import BadInput


def refuse_repeated(texts: Sequence[str]) -> None:
    """Refuse KEY=VALUE words that name a key twice: one of the values would be lost without a word.

    Raises:
        BadInput: A key is given twice.
    """
    first: dict[str, str] = {}
    for text in texts:
        key = text.partition("=")[0].strip()
        if key in first:
            raise BadInput(f"{key} is given twice ({first[key]} and {text}); give one of them")
        first[key] = text
