"""Base class of components, which recipes refer to by their names."""

from __future__ import annotations

from typing import Any, ClassVar

from fedhead.core.components.parameters import Checked


class Component(Checked):
    """Base class of registered components, whose fields are validated parameters.

    Attributes:
        name: Name in records and errors: the registered name, or the name of the class.
    """

    name: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Set the default name, the name of the class."""
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__
