"""KEY=VALUE arguments of commands and deployments."""

from __future__ import annotations

from collections.abc import Sequence

from fedhead.core.system.errors import BadInput


def refuse_repeated(texts: Sequence[str]) -> None:
    """Refuse duplicate keys in KEY=VALUE arguments: one of the values would be lost silently.

    Raises:
        BadInput: If a key is given twice.
    """
    first: dict[str, str] = {}
    for text in texts:
        key = text.partition("=")[0].strip()
        if key in first:
            raise BadInput(f"{key} is given twice ({first[key]} and {text}); give one of them")
        first[key] = text
