"""Errors of sites as the server sees them: a code and a reference number, never free text.

The text of an error may quote the site's data: a cell with a patient's name, a label, a file's name, a path. It stays
in the site's own log, under the reference number that the server's log has too.
"""

from __future__ import annotations

import secrets
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from fedhead.core.system.errors import BadInput, Diverged, FedheadError
from fedhead.core.system.text import printable

TEXTS = {
    "version": "it runs another version of fedhead",
    "request": "it can't read the request",
    "name": "its name is not among the server's sites",
    "settings": "its site.yaml can't be read",
    "code": "the run names code that its site.yaml does not allow, or that differs from the server's",
    "policy": "its site.yaml does not allow this run's method, stages, model or data set",
    "memory": "it has not enough memory for the request, or may not have more",
    "data": "its data can't be used for this run",
    "no-samples": "it holds no training samples",
    "setup": "it can't set up the run's method, stages or model",
    "tensors": "the server's tensors don't fit its model",
    "state": "its stored state can't be read",
    "disk": "it can't write its state",
    "diverged": "its numbers are not finite any more; a smaller learning rate (lr) is the usual fix",
    "error": "an unexpected error",
}


class SiteProblem(BadInput):
    """A failure at a site; of it only the code leaves the site.

    Args:
        code: One of `TEXTS`.
        text: What is wrong, for the site's own log.
    """

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.code = code


@contextmanager
def coded(code: str) -> Iterator[None]:
    """Give a code to the errors of a block that have none yet."""
    try:
        yield
    except SiteProblem:
        raise
    except FedheadError as error:
        raise SiteProblem(code, str(error)) from error


def record(site: str, error: Exception) -> tuple[str, str]:
    """Write an error into the site's own log.

    Returns:
        The code and the reference number, which are all that the server may learn.
    """
    code = _code(error)
    reference = secrets.token_hex(4)
    print(f"site {site}: problem {reference} ({code}): {error}", file=sys.stderr, flush=True)
    if not isinstance(error, FedheadError):
        traceback.print_exception(error)
    return (code if code in TEXTS else "error"), reference


def _code(error: BaseException) -> str:
    if isinstance(error, Diverged):
        return "diverged"
    # torch is not imported here: what answers Flower's messages must start fast
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "CPUAllocator" in str(error):
        return "memory"
    return str(getattr(error, "code", "error"))


def describe(code: str, reference: str) -> str:
    """Return the line for the server's operator, from what a site sent; the site may have sent anything."""
    text = TEXTS.get(code, "it reports a problem that this version of fedhead does not know")
    return f"{text} ({printable(code, 20)}, reference {printable(reference, 20)} in the site's own log)"
