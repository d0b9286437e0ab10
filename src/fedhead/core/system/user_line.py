"""Location of an error in the user's own code, for messages of one line."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

_PACKAGES = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "typer", "click", "rich", "flwr")


def user_line(error: BaseException, after: str = "") -> str | None:
    """Return the innermost line of the user's own code in an error's traceback.

    Args:
        error: The error.
        after: Look only behind the first frame whose file has this in its path; "": in all frames.

    Returns:
        Such as "FedMine.loss (mine.py, line 12)"; None if no line is the user's.
    """
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    first = next((i for i, (code, _) in enumerate(frames) if after in code.co_filename), 0)
    own = [(code, line) for code, line in frames[first:] if not _is_library(code.co_filename)]
    if not own:
        return None
    code, line = own[-1]
    return f"{code.co_qualname.rpartition('<locals>.')[2]} ({Path(code.co_filename).name}, line {line})"


def _is_library(file: str) -> bool:
    """Return whether a file belongs to fedhead, to Python, or to a package that fedhead is built on."""
    found = [sys.modules[name].__file__ for name in _PACKAGES if name in sys.modules]
    roots = [Path(__file__).parents[2], *(Path(path).parent for path in found if path)]
    if file.startswith(("<", *(f"{root}/" for root in roots))):
        return True
    return file.startswith(sysconfig.get_path("stdlib")) and "site-packages" not in file
