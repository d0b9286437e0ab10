"""Location of an error in the user's code, for one-line messages."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

_PACKAGES = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "rich", "flwr")


def user_line(error: BaseException, after: str = "") -> str | None:
    """Return the innermost line of the user's code in a traceback.

    Args:
        error: Error with a traceback.
        after: Search only after the first frame whose file contains this text; "": search all frames.

    Returns:
        Text such as "FedMine.loss (mine.py, line 12)"; None if there is no such line.
    """
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    first = next((i for i, (code, _) in enumerate(frames) if after in code.co_filename), 0)
    lines = [(code, line) for code, line in frames[first:] if not _is_library(code.co_filename)]
    if not lines:
        return None
    code, line = lines[-1]
    return f"{code.co_qualname.rpartition('<locals>.')[2]} ({Path(code.co_filename).name}, line {line})"


def _is_library(file: str) -> bool:
    """Return whether a file belongs to fedhead, Python or a dependency."""
    files = [sys.modules[name].__file__ for name in _PACKAGES if name in sys.modules]
    roots = [Path(__file__).parents[2], *(Path(path).parent for path in files if path)]
    if file.startswith(("<", *(f"{root}/" for root in roots))):
        return True
    return file.startswith(sysconfig.get_path("stdlib")) and "site-packages" not in file
