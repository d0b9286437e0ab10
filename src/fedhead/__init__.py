"""Federated classification that survives non-IID data.

The public names are those of `fedhead.public`, imported at their first use: torch takes a second or two to import, and
the command line has answers that do not need it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedhead.core.system.version import VERSION

if TYPE_CHECKING:
    from fedhead.public import *

__version__ = VERSION


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'fedhead' has no attribute {name!r}")
    public = vars(importlib.import_module("fedhead.public"))
    if name == "__all__":
        return sorted(word for word in public if not word.startswith("_"))
    if name not in public:
        raise AttributeError(f"module 'fedhead' has no attribute {name!r}")
    return public[name]


def __dir__() -> list[str]:
    return sorted({*__getattr__("__all__"), "__version__"})
