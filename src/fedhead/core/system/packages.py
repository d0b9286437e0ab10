"""Folders of optional packages, which extras of fedhead install."""

from __future__ import annotations

from importlib import util
from pathlib import Path

from fedhead.core.system.errors import BadInput


def package_folder(package: str, extra: str) -> Path:
    """Return the folder of an installed package, without importing it.

    Args:
        package: Name of the package.
        extra: Extra of fedhead that installs it.

    Raises:
        BadInput: If it is not installed.
    """
    spec = util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise BadInput(f"the package {package} is not installed: pip install 'fedhead[{extra}]'")
    return Path(spec.submodule_search_locations[0])
