"""Base class of the components that recipes name."""

from __future__ import annotations

from typing import Any, ClassVar

from fedhead.core.components.parameters import Checked


class Component(Checked):
    """A class that is registered by name, and whose fields are its checked parameters.

    Attributes:
        name: Name in records and errors: the registered one, or that of the class.
    """

    name: ClassVar[str] = ""

    def __init_subclass__(cls, **settings: Any) -> None:
        """Name a class after itself until it is registered."""
        super().__init_subclass__(**settings)
        if "name" not in vars(cls):
            cls.name = cls.__name__
