"""Errors of single runs and trials: which of them end everything, and how the others are recorded."""

from __future__ import annotations

from fedhead.core.system.errors import FedheadError, first_line, machine_fault
from fedhead.core.system.user_line import user_line


def raise_if_fatal(error: Exception) -> None:
    """Raise what no other run would survive; a run that finds too little memory is only too large itself."""
    if (fault := machine_fault(error)) is not None and fault != "out of memory":
        raise error


def describe_error(error: BaseException) -> str:
    """Return an error in one line, with the line of the user's own code that raised it."""
    if isinstance(error, FedheadError):
        return str(error)
    where = user_line(error)
    return f"{where}: {first_line(error)}" if where else first_line(error)
