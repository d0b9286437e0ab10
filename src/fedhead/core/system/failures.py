"""Errors of single runs and trials: fatal ones, and descriptions of the others."""

from __future__ import annotations

from fedhead.core.system.errors import FedheadError, first_line, machine_fault
from fedhead.core.system.user_line import user_line


def raise_if_fatal(error: Exception) -> None:
    """Raise an error that affects all runs; out of memory affects only its own run."""
    if (fault := machine_fault(error)) is not None and fault != "out of memory":
        raise error


def describe_error(error: BaseException) -> str:
    """Describe an error in one line, with the line of the user's code that raised it."""
    if isinstance(error, FedheadError):
        return str(error)
    where = user_line(error)
    return f"{where}: {first_line(error)}" if where else first_line(error)
