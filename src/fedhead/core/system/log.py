"""Logger of the library, for warnings about deviations from the user's request.

The logger is called `fedhead`, so `logging.getLogger("fedhead").setLevel(logging.ERROR)` silences the warnings. By
default Python prints them to standard error.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

logger = logging.getLogger("fedhead")
Log = Callable[[str], None]  # receives the progress lines of a command


@functools.cache  # a repeated text hits the cache and is not logged
def warn_once(text: str) -> None:
    """Log a warning once per process.

    Args:
        text: Warning of one line.
    """
    logger.warning(text)
