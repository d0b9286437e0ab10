"""Cache of the last data set, shared by the runs of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_lock = threading.RLock()  # only one thread reads at a time; others wait for its result
_parts: dict[tuple[Any, ...], Any] = {}


def read(key: tuple[Any, ...], reader: Callable[[], Any]) -> Any:
    """Return the cached part of a data set, or call its reader.

    The result is shared: callers must not modify it. Only one data set is kept, since several may not fit into memory.

    Args:
        key: Name or path of the data set, followed by the other parameters of the part.
        reader: Function that reads the part.
    """
    with _lock:
        if key not in _parts:
            if any(other[0] != key[0] for other in _parts):
                _parts.clear()
            _parts[key] = reader()
        return _parts[key]


def clear() -> None:
    """Clear the cache, such as after files have changed."""
    with _lock:
        _parts.clear()
