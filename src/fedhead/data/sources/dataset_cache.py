"""Cache of data sets for runs that share one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedhead.data.inputs.arrays import Samples

Key = tuple[str, Path, str]  # name of the data set, its folder, the part


class _Kept:
    """Cached parts of data sets and their number of users."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # threads that want the same files wait for the first
        self.holders = 0
        self.parts: dict[Key, Samples] = {}


_kept = _Kept()


@contextmanager
def read_once() -> Iterator[None]:
    """Read each part of a data set only once inside this context; who uses it must not change it."""
    with _kept.lock:
        _kept.holders += 1
    try:
        yield
    finally:
        with _kept.lock:
            _kept.holders -= 1
            if not _kept.holders:
                _kept.parts.clear()


def read(key: Key, reader: Callable[[], Samples]) -> Samples:
    """Return the cached result of a reader inside `read_once`, or call the reader.

    Args:
        key: What is read.
        reader: Reads it.
    """
    if not _kept.holders:
        return reader()
    with _kept.lock:
        if key not in _kept.parts:
            if any(name != key[0] for name, _, _ in _kept.parts):
                _kept.parts.clear()  # one data set at a time: several may not fit into memory
            _kept.parts[key] = reader()
        return _kept.parts[key]
