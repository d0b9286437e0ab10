"""Packages that an extra of fedhead brings: their folders, and one line where they are missing."""

from __future__ import annotations

from importlib import util
from pathlib import Path

from fedhead.core.system.errors import BadInput


def package_folder(package: str, extra: str) -> Path:
    """Return the folder of an installed package, without importing it.

    Args:
        package: Name of the package.
        extra: The extra of fedhead that brings it.

    Raises:
        BadInput: If it is not installed.
    """
    found = util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise BadInput(f"the package {package} is not installed: pip install 'fedhead[{extra}]'")
    return Path(found.submodule_search_locations[0])
