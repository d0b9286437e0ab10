"""The library's logger, for warnings about deviations from what was asked.

Everything is logged under the name `fedhead`, so `logging.getLogger("fedhead").setLevel(logging.ERROR)` silences the
warnings. Without any configuration Python itself prints them to the standard error.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

logger = logging.getLogger("fedhead")
Log = Callable[[str], None]  # where a command's progress lines go


@functools.cache  # the same text again is answered from the cache, and nothing is logged
def warn_once(text: str) -> None:
    """Log a warning the first time that this process has a reason for it.

    Args:
        text: The warning, one line.
    """
    logger.warning(text)
