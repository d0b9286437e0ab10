"""Logger of the library, for warnings about deviations from the user's request.

The logger is called `fedhead`, so `logging.getLogger("fedhead").setLevel(logging.ERROR)` silences the warnings. By
default Python prints them to standard error.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedhead.core.system.text import printable

logger = logging.getLogger("fedhead")
Log = Callable[[str], None]  # receives the progress lines of a command


@functools.cache  # a repeated text hits the cache and is not logged
def warn_once(text: str) -> None:
    """Log a warning once per process.

    Args:
        text: Warning of one line.
    """
    logger.warning(text)


class _OneLineFormatter(logging.Formatter):
    """Formatter of records as `warning: text` on one line."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(f"{record.levelname.lower()}: {' '.join(record.getMessage().split())}", 2000)


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Write the library's log to standard error during a command, one line per record."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLineFormatter())
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
